-- checkup: what a sound store does not have.

-- stranded: jobs that wait for a chain which has ended or is gone.
select count(*)
from onejob_job j
where j.follows is not null and j.state = 'blocked'
    and not exists (select 1 from onejob_job h where h.id = j.follows and h.ended is null)
    and not exists (select 1 from onejob_job h where h.chain = j.follows and h.ended is null);
