-- dead: failed jobs wait as copies in another queue, until they are retried or removed.

-- options_of: what a job about to be buried was enqueued with.
select options from onejob_job where id = :id;

-- bury: a copy of a job that has just failed; one that is already there is left alone.
insert into onejob_job (
    id, queue, task, state, priority, due, accepted, updated, since, payload, options, max_crashes, items,
    error, origin, origin_queue
)
select
    :copy, :queue, task, 'waiting', priority, :now, :now, :now, :now, payload, :options, max_crashes, items,
    error, id, queue
from onejob_job
where id = :id and state = 'failed'
on conflict (id) do nothing;

-- find: the dead letter that has one of these two ids.
select id, origin, state, queue, origin_queue, options
from onejob_job
where id in (:id, :copy) and origin is not null;

-- exhume: an original that is gone, made again from its dead letter, without a key.
insert into onejob_job (
    id, queue, task, state, priority, due, accepted, updated, since, payload, options, max_crashes, items, error
)
select
    origin, origin_queue, task, 'waiting', priority, :now, :now, :now, :now, payload, :options, max_crashes,
    items, error
from onejob_job
where id = :copy;

-- remove: a dead letter whose original runs again.
delete from onejob_job where id = :copy and origin is not null and state != 'running';

-- range: dead letters of a queue by place, newest first, but for those that have been dealt with.
select id from onejob_job
where origin_queue = :queue and state not in ('completed', 'revoked')
order by seq desc
limit :limit offset :start;

-- range_of_all: the same, of all queues.
select id from onejob_job
where origin_queue is not null and state not in ('completed', 'revoked')
order by seq desc
limit :limit offset :start;

-- errors: dead letters by the first line of their error; the sample is the newest.
select
    coalesce(substr(error, 1, instr(error || char(10), char(10)) - 1), '') as line, count(*) as number, id,
    min(accepted), max(accepted), max(seq) as newest
from onejob_job
where origin_queue is not null and (:queue is null or origin_queue = :queue)
    and state not in ('completed', 'revoked')
group by line
order by number desc, newest desc
limit :limit;
