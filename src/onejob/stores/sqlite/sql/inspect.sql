-- inspect: reads for people; none of them blocks a writer.

-- job: one job, whole.
select
    id, queue, task, state, payload, priority, accepted, updated, due, expires, started, ended, attempt,
    failures, crashes, max_crashes, misses, items, worker, aborting, follows, key, digest, plan, options,
    progress, result, error, origin, origin_queue
from onejob_job
where id = :id;

-- jobs: a page of jobs, newest first.
select
    id, queue, task, state, payload, priority, accepted, updated, due, expires, started, ended, attempt,
    failures, crashes, max_crashes, misses, items, worker, aborting, follows, key, digest, plan, options,
    progress, result, error, origin, origin_queue, seq
from onejob_job j
where j.seq > :after and j.seq < :before
    and (:states is null or j.state in (select value from json_each(:states)))
    and (:accepted_by is null or j.accepted <= :accepted_by)
    and (:accepted_after is null or j.accepted > :accepted_after)
    and (:ended_by is null or j.ended <= :ended_by)
    and (:keys is null or j.key in (select value from json_each(:keys)))
    and (:queues is null or exists (select 1 from json_each(:queues) where j.queue glob value))
    and (:tasks is null or exists (select 1 from json_each(:tasks) where j.task glob value))
    and (:ids is null or exists (select 1 from json_each(:ids) where j.id between unhex(value ->> 0) and unhex(value ->> 1)))
    and (:errors is null or exists (select 1 from json_each(:errors) where instr(lower(j.error), value)))
    and (:args is null or onejob_holds(j.payload, :args))
order by j.seq desc
limit :limit;

-- count: how many jobs match; the same conditions as for a page.
select count(*)
from onejob_job j
where j.seq > :after and j.seq < :before
    and (:states is null or j.state in (select value from json_each(:states)))
    and (:accepted_by is null or j.accepted <= :accepted_by)
    and (:accepted_after is null or j.accepted > :accepted_after)
    and (:ended_by is null or j.ended <= :ended_by)
    and (:keys is null or j.key in (select value from json_each(:keys)))
    and (:queues is null or exists (select 1 from json_each(:queues) where j.queue glob value))
    and (:tasks is null or exists (select 1 from json_each(:tasks) where j.task glob value))
    and (:ids is null or exists (select 1 from json_each(:ids) where j.id between unhex(value ->> 0) and unhex(value ->> 1)))
    and (:errors is null or exists (select 1 from json_each(:errors) where instr(lower(j.error), value)))
    and (:args is null or onejob_holds(j.payload, :args));

-- reach: between which places the jobs stand whose ids begin so.
select min(j.seq), max(j.seq)
from json_each(:ids) p
join onejob_job j on j.id between unhex(p.value ->> 0) and unhex(p.value ->> 1);

-- waiting_since: since when the longest waiting job of each queue has been due.
select queue, min(due) from onejob_job where state = 'waiting' group by queue;

-- key: one key's record beside its holder.
select text, queue, task, generation, absorbed, differing, ended_at from onejob_key where digest = :digest;

-- keys: the digests of keys on record, the most recently taken first.
select digest from onejob_key
where (:queue is null or queue = :queue) and (:text is null or text = :text)
order by since desc
limit :limit;

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
