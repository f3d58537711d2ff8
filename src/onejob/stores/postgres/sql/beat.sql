-- beat: prolong a worker's leases, and read what it still holds.

-- held: the leases that a worker holds, and which of its jobs are asked to stop.
select j.id, j.lease, j.aborting or exists (select 1 from onejob.flag f where f.chain = coalesce(j.chain, j.id))
from onejob.job j
where j.state = 'running' and j.worker = $1::text;

-- sign: the worker is alive for a while longer.
instant as (
    select coalesce($7::bigint, (extract(epoch from clock_timestamp()) * 1000)::bigint) as now
), sign as (
    insert into onejob.worker (id, queues, host, pid, concurrency, started, seen, alive_until)
    select $1::text, $2::text, $3::text, $4::integer, $5::integer, now, now, now + $6::bigint from instant
    on conflict (id) do update set
        queues = excluded.queues, host = excluded.host, pid = excluded.pid, concurrency = excluded.concurrency,
        seen = excluded.seen, alive_until = excluded.alive_until
)

-- beat: both in one.
with
/* sign */
/* held */

-- beat_with_progress: and what handlers last said of their progress (jobs are sorted), but for jobs that are being
-- settled.
with
/* sign */
, reported as (
    select id from onejob.job
    where id = any($8::uuid[]) and state in ('running', '') and worker = $1::text
    for update skip locked
), written as (
    update onejob.job j
    set progress = ($9::bytea[])[width_bucket(j.id, $8::uuid[])], updated = (select i.now from instant i)
    where j.id = any(array(select r.id from reported r))
)
/* held */

-- leave: a worker that stopped in good order.
delete from onejob.worker where id = $1::text;
