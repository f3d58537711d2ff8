-- expired: running jobs whose worker has stopped beating, or is not on record. Worker by worker, because most of them
-- are alive and run many.
with recursive instant as (
    select coalesce($2::bigint, (extract(epoch from clock_timestamp()) * 1000)::bigint) as now
), busy as (
    (select j.worker from onejob.job j where j.state = 'running' order by j.worker limit 1)
    union all
    select (
        select j.worker from onejob.job j
        where j.state = 'running' and j.worker > b.worker
        order by j.worker
        limit 1
    )
    from busy b
    where b.worker is not null
)
select
    j.id, j.task, j.payload, j.options, j.attempt, j.failures, j.crashes, j.max_crashes, j.misses, j.accepted, j.due,
    j.key, j.priority, j.seq, j.lane, j.chain, j.chain_index, j.blockers, j.queue, j.lease, j.worker
from busy b
cross join lateral (
    select * from onejob.job r where r.state = 'running' and r.worker = b.worker order by r.started limit $1::bigint
) j
where not exists (
    select 1 from onejob.worker w where w.id = b.worker and w.alive_until > (select i.now from instant i)
)
order by j.started
limit $1::bigint;
