-- rates: the starts that a rate counts; those of a queue's own rate have the lane ''.

-- start: one start that a rate counts.
insert into onejob_start (queue, lane, at, job, lease) values (?, ?, ?, ?, ?);

-- bring_back: starts that a clock since set back has left in the future count from now.
update onejob_start set at = :now where queue = :queue and lane = :lane and at > :now;

-- forget_starts: starts that no rate counts any more.
delete from onejob_start where queue = :queue and lane = :lane and at <= :before;

-- count_starts: how many starts are on record, the first and the last of them.
select count(*), min(at), max(at) from onejob_start where queue = :queue and lane = :lane;

-- nth_start: one of them, from the oldest.
select at from onejob_start where queue = :queue and lane = :lane order by at limit 1 offset :skipped;
