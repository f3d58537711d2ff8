-- claim: start waiting jobs for one worker; a claim is a start, and never looks at keys. What waits may start as far
-- as its lane is concerned.

-- register: a worker that claims before its first beat is alive until a beat says more.
insert into onejob_worker (id, queues, host, pid, concurrency, started, seen, alive_until)
values (:worker, '[]', '', 0, 0, :now, :now, :now + :grace)
on conflict (id) do nothing;

-- overdue: queued jobs whose time to start has passed.
select id from onejob_job
where expires <= :now and expires is not null and ended is null
    and state in ('blocked', 'delayed', 'parked', 'waiting')
limit :limit;

-- promote: delayed jobs of a queue whose time has come wait from now on.
update onejob_job
set state = 'waiting'
where seq in (
    select seq from onejob_job
    where state = 'delayed' and lane is null and queue = :queue and due <= :now
    order by due
    limit :limit
);

-- promote_in_lanes: those of lanes wait for their turn. All of them: one left out might be the oldest of its lane.
update onejob_job
set state = 'parked', place = iif(place = 0, 1, place)
where state = 'delayed' and lane is not null and queue = :queue and due <= :now
returning lane;

-- next: up to :limit waiting jobs of a queue as they will have started, best priority first, then by due time, then by
-- acceptance.
select
    id, cast(task as blob), payload, options, attempt + 1, failures, crashes, max_crashes, misses, accepted, due,
    cast(key as blob), priority, seq, cast(lane as blob), chain, chain_index, blockers, digest
from onejob_job
where state = 'waiting' and queue = :queue and (expires is null or expires > :now)
order by priority desc, due, seq
limit :limit;

-- start: they run from now on. "or fail" is for the reason that `lanes.release_next` gives.
update or fail onejob_job
set state = 'running', attempt = attempt + 1, lease = ?1, worker = ?2, started = ?3
where seq in carray(?4) and state = 'waiting';

-- outlook: what time brings to a queue (its next delayed job, a lane that opens), whether any lane has a rate, and
-- the queue's own limits. Lanes that a clock since set back has closed for too long are looked at now.
select
    (select min(due) from onejob_job where state = 'delayed' and lane is null and queue = :queue),
    (select min(due) from onejob_job where state = 'delayed' and lane is not null and queue = :queue),
    coalesce(
        (
            select :now from onejob_lane
            where queue = :queue and opens_at - rate_per > :now and opens_at is not null
            limit 1
        ),
        (select min(opens_at) from onejob_lane where queue = :queue and opens_at is not null)
    ),
    exists (select 1 from onejob_lane indexed by onejob_lane_rated where queue = :queue and rate_max is not null),
    q.concurrency, q.rate_max, q.rate_per, coalesce(q.paused, 0)
from (select 1)
left join onejob_queue q on q.name = :queue;
