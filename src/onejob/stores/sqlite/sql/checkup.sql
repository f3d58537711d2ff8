-- checkup: what a sound store does not have.

-- stranded: jobs that wait for a chain which has ended or is gone.
select count(*)
from onejob_job j
left join onejob_job h on h.id = j.follows
where j.follows is not null and j.state = 'blocked' and (h.id is null or h.ended is not null);
