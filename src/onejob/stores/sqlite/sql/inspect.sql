-- inspect: reads for people; none of them blocks a writer.

-- job: one job, whole.
select
    id, queue, task, state, payload, priority, accepted, updated, due, expires, started, ended, attempt,
    failures, crashes, max_crashes, misses, items, worker, aborting, follows, key, digest, plan, options,
    progress, result, error
from onejob_job
where id = :id;

-- jobs: a page of jobs, newest first.
select
    id, queue, task, state, payload, priority, accepted, updated, due, expires, started, ended, attempt,
    failures, crashes, max_crashes, misses, items, worker, aborting, follows, key, digest, plan, options,
    progress, result, error, seq
from onejob_job
where (:before is null or seq < :before)
    and (:queue is null or queue = :queue)
    and (:task is null or task = :task)
    and (:key is null or key = :key)
    and (:states is null or state in (select value from json_each(:states)))
order by seq desc
limit :limit;

-- key: one key's record beside its holder.
select text, queue, task, generation, absorbed, differing, ended_at from onejob_key where digest = :digest;

-- keys: the digests of keys on record, the most recently taken first.
select digest from onejob_key where :queue is null or queue = :queue order by since desc limit :limit;

-- counts: jobs per queue and state.
select queue, state, count(*) from onejob_job group by queue, state;

-- workers: workers on record with the number of jobs each runs.
select
    w.id, w.queues, w.host, w.pid, w.concurrency, w.started, w.seen, w.alive_until > :now,
    (select count(*) from onejob_job j where j.state = 'running' and j.worker = w.id)
from onejob_worker w
order by w.started;

-- followers: jobs that wait for a chain to end.
select id from onejob_job where follows = :id order by seq;
