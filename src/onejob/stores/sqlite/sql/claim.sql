-- claim: start waiting jobs for one worker; a claim is a start, and never looks at keys.

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
    where state = 'delayed' and queue = :queue and due <= :now
    order by due
    limit :limit
);

-- claim: up to :limit waiting jobs of a queue, best priority first, then by due time, then by acceptance.
update onejob_job
set state = 'running', attempt = attempt + 1, lease = :lease, worker = :worker, started = :now
where seq in (
    select seq from onejob_job
    where state = 'waiting' and queue = :queue and (expires is null or expires > :now)
    order by priority desc, due, seq
    limit :limit
)
returning
    id, cast(task as blob), payload, options, attempt, failures, crashes, max_crashes, misses, accepted, due,
    cast(key as blob), priority, seq;

-- next_due: when the next delayed job of a queue becomes due.
select min(due) from onejob_job where state = 'delayed' and queue = :queue;
