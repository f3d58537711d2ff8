-- dead: failed jobs wait as copies in another queue, until they are retried or removed.

-- options_of: what jobs about to be buried were enqueued with.
select id, options from onejob.job where id = any($1::uuid[]);

-- bury: copies of jobs that have just failed; one that is already there is left alone.
insert into onejob.job (
    id, queue, task, state, priority, due, accepted, updated, since, payload, options, max_crashes, items,
    error, origin, origin_queue
)
select
    g.copy, g.queue, j.task, 'waiting', j.priority, $5::bigint, $5::bigint, $5::bigint, $5::bigint, j.payload, g.options,
    j.max_crashes, j.items, j.error, j.id, j.queue
from unnest($1::uuid[], $2::uuid[], $3::text[], $4::bytea[]) with ordinality as g (id, copy, queue, options, number)
cross join lateral (select * from onejob.job f where f.id = g.id and f.state = 'failed' offset 0) j
order by g.number
on conflict do nothing;

-- find: the dead letter that has one of these two ids.
select id, origin, state, queue, origin_queue, options
from onejob.job
where id in ($1::uuid, $2::uuid) and origin is not null;

-- exhume: an original that is gone, made again from its dead letter, without a key.
insert into onejob.job (
    id, queue, task, state, priority, due, accepted, updated, since, payload, options, max_crashes, items, error
)
select
    origin, origin_queue, task, 'waiting', priority, $3::bigint, $3::bigint, $3::bigint, $3::bigint, payload,
    $2::bytea, max_crashes, items, error
from onejob.job
where id = $1::uuid
on conflict do nothing;

-- remove: a dead letter whose original runs again.
delete from onejob.job where id = $1::uuid and origin is not null and state != 'running';

-- range: dead letters of a queue, or of all, by place, newest first, but for those that have been dealt with.
select id from onejob.job
where origin_queue is not null and ($1::text is null or origin_queue = $1::text)
    and state not in ('completed', 'revoked')
order by seq desc
limit $3::bigint offset $2::bigint;

-- errors: dead letters by the first line of their error; the sample is the newest.
select
    coalesce(split_part(error, e'\n', 1), '') as line, count(*) as number,
    (array_agg(id order by seq desc))[1], min(accepted), max(accepted), max(seq) as newest
from onejob.job
where origin_queue is not null and ($1::text is null or origin_queue = $1::text)
    and state not in ('completed', 'revoked')
group by line
order by number desc, newest desc
limit $2::bigint;
