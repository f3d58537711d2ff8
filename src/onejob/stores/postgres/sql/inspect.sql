-- inspect: reads for people; none of them blocks a writer, and none takes a lock.

-- time: the store's clock.
select coalesce($1::bigint, (extract(epoch from clock_timestamp()) * 1000)::bigint);

-- columns: of a job j, in the order in which it is read. One that has ended waits for nobody.
j.id, j.queue, j.task, j.state, j.payload, j.priority, j.accepted, j.updated, j.due, j.expires, j.started, j.ended,
    j.attempt, j.failures, j.crashes, j.max_crashes, j.misses, j.items, j.worker,
    j.ended is null and (j.aborting or exists (select 1 from onejob.flag f where f.chain = coalesce(j.chain, j.id))),
    case when j.ended is null then j.follows end, j.key, j.digest, j.plan, j.options, j.progress, j.result, j.error,
    j.origin, j.origin_queue, j.lane, j.chain, j.chain_index, j.blockers, j.seq

-- jobs_by_ids: jobs in the order of their ids as given.
select /* columns */
from unnest($1::uuid[]) with ordinality n (id, place)
join onejob.job j on j.id = n.id
order by n.place;

-- chain: all jobs of the chain that a job belongs to, by place.
select /* columns */
from onejob.job n
join onejob.job j on j.id = coalesce(n.chain, n.id) or j.chain = coalesce(n.chain, n.id)
where n.id = $1::uuid
order by j.chain_index;

-- last: the last of them.
select /* columns */
from onejob.job n
join onejob.job j on j.id = coalesce(n.chain, n.id) or j.chain = coalesce(n.chain, n.id)
where n.id = $1::uuid
order by j.chain_index desc
limit 1;

-- now: the clock, asked once per statement.
(select coalesce($1::bigint, (extract(epoch from clock_timestamp()) * 1000)::bigint))

-- matching: what a filter says of a job j, but for what only its payload and options can tell.
j.seq > $2::bigint and j.seq < $3::bigint
and ($4::text[] is null or j.state = any($4::text[]))
and ($5::bigint is null or j.accepted <= /* now */ - $5::bigint)
and ($6::bigint is null or j.accepted > /* now */ - $6::bigint)
and ($7::bigint is null or j.ended <= /* now */ - $7::bigint)
and ($8::text[] is null or j.key = any($8::text[]))
and ($9::text[] is null or j.lane = any($9::text[]))
and ($10::text[] is null or j.queue like any($10::text[]))
and ($11::text[] is null or j.origin_queue like any($11::text[]))
and ($12::text[] is null or j.task like any($12::text[]))
and (
    $13::uuid[] is null
    or exists (select 1 from unnest($13::uuid[], $14::uuid[]) r (low, high) where j.id between r.low and r.high)
)
and (
    $15::uuid[] is null
    or exists (
        select 1 from unnest($15::uuid[], $16::uuid[]) r (low, high)
        where coalesce(j.chain, j.id) between r.low and r.high
    )
)
and ($17::bytea[] is null or j.options like any($17::bytea[]))
and (
    $18::text[] is null
    or exists (select 1 from unnest($18::text[]) e (part) where strpos(lower(j.error collate "C"), e.part) > 0)
)

-- of_states: the same for filters by state, told so that the indexes of states can serve.
/* matching */
and j.state = any($4::text[])
and (not $4::text[] <@ array['completed', 'failed', 'revoked'] or j.ended is not null)

-- among: the same of few jobs, whose places are known.
/* matching */
and j.seq = any($19::bigint[])

-- jobs: a page of jobs, newest first.
select /* columns */
from onejob.job j
where /* matching */
order by j.seq desc
limit $19::bigint;

-- jobs_of_states: the same for filters by state.
select /* columns */
from onejob.job j
where /* of_states */
order by j.seq desc
limit $19::bigint;

-- jobs_among: the same for filters by id.
select /* columns */
from onejob.job j
where /* among */
order by j.seq desc
limit $20::bigint;

-- count: how many jobs match.
select count(*) from onejob.job j where /* matching */;

-- count_of_states: the same for filters by state.
select count(*) from onejob.job j where /* of_states */;

-- count_among: the same for filters by id.
select count(*) from onejob.job j where /* among */;

-- contents: a page of what only we can look into: options, and payloads if they matter.
select j.seq, j.options, case when $20::boolean then j.payload end
from onejob.job j
where /* matching */
order by j.seq desc
limit $19::bigint;

-- contents_of_states: the same for filters by state.
select j.seq, j.options, case when $20::boolean then j.payload end
from onejob.job j
where /* of_states */
order by j.seq desc
limit $19::bigint;

-- contents_among: the same for filters by id.
select j.seq, j.options, case when $21::boolean then j.payload end
from onejob.job j
where /* among */
order by j.seq desc
limit $20::bigint;

-- jobs_at: jobs by their places, newest first.
select /* columns */ from onejob.job j where j.seq = any($1::bigint[]) order by j.seq desc;

-- plan_for_values: until the end of the transaction, statements are planned for the values that they are given.
select set_config('plan_cache_mode', 'force_custom_plan', true), set_config('enable_seqscan', 'on', true);

-- beginning_so: jobs whose ids, or those of their chains, are in these ranges.
select j.seq from unnest($1::uuid[], $2::uuid[]) r (low, high) join onejob.job j on j.id between r.low and r.high
union
select j.seq from unnest($1::uuid[], $2::uuid[]) r (low, high) join onejob.job j on j.chain between r.low and r.high

-- near: their places, if they are few.
select n.seq from (
    /* beginning_so */
) n
limit $3::bigint;

-- reach: between which places they stand.
select min(n.seq), max(n.seq) from (
    /* beginning_so */
) n;

-- waiting_since: since when the longest waiting job of each queue and priority has been due, for so many of those;
-- dead letters wait for a person. From one pair to the next by the index, however many jobs each has.
with recursive pair as (
    (
        select j.queue, j.priority from onejob.job j where j.state = 'waiting' order by j.queue, j.priority desc limit 1
    )
    union all
    select n.queue, n.priority
    from pair p
    cross join lateral (
        select b.queue, b.priority from (
            (
                select j.queue, j.priority, 1 as turn from onejob.job j
                where j.state = 'waiting' and j.queue = p.queue and j.priority < p.priority
                order by j.priority desc
                limit 1
            )
            union all
            (
                select j.queue, j.priority, 2 from onejob.job j
                where j.state = 'waiting' and j.queue > p.queue
                order by j.queue, j.priority desc
                limit 1
            )
        ) b
        order by b.turn
        limit 1
    ) n
)
select p.queue, w.due
from (
    select * from pair limit $1::bigint
) p
left join lateral (
    select j.due from onejob.job j
    where j.state = 'waiting' and j.queue = p.queue and j.priority = p.priority and j.origin_queue is null
    order by j.due, j.seq
    limit 1
) w on true;

-- waiting_since_by_all: the same by looking at each job, where there are too many pairs.
select j.queue, min(j.due) from onejob.job j where j.state = 'waiting' and j.origin_queue is null group by j.queue;

-- key: one key's record beside its holder. What settling could not write yet is what its last job says.
select
    k.digest, k.text, k.queue, k.task, k.generation, k.absorbed, k.differing,
    coalesce(
        k.ended_at,
        (select t.ended from onejob.job t where t.chain = k.holder order by t.chain_index desc limit 1),
        (
            select j.ended from onejob.job j
            where j.id = k.holder and not exists (select 1 from onejob.job t where t.chain = k.holder)
        )
    )
from onejob.key k

-- keys_by_digest: some keys.
/* key */
where k.digest = any($1::bytea[]);

-- keys: keys on record, the most recently taken first.
/* key */
where ($1::text is null or k.queue = $1::text) and ($2::text is null or k.text = $2::text)
order by k.since desc
limit $3::bigint;

-- counts: jobs per queue and state, each state by the index that it has. What none of these knows is one more row.
with known (queue, state, number) as (
    select queue, state, count(*) from onejob.job where ended is not null group by queue, state
    union all
    select queue, 'waiting', count(*) from onejob.job where state = 'waiting' group by queue
    union all
    select queue, 'delayed', count(*)
    from (
        select queue from onejob.job where state = 'delayed' and lane is null
        union all
        select queue from onejob.job where state = 'delayed' and lane is not null
    ) d
    group by queue
    union all
    select queue, 'running', count(*) from onejob.job where state = 'running' group by queue
    union all
    select queue, state, count(*) from onejob.job where state in ('blocked', 'parked') group by queue, state
)
select queue, state, number from known
union all
select '', (
    select state from onejob.job
    where ended is null and state not in ('blocked', 'delayed', 'parked', 'waiting', 'running')
    limit 1
), t.number
from (
    select (select count(*) from onejob.job) - (select coalesce(sum(number), 0) from known)::bigint as number
) t
where t.number > 0;

-- workers: workers on record with the number of jobs each runs.
select
    w.id, w.queues, w.host, w.pid, w.concurrency, w.started, w.seen, w.alive_until > /* now */,
    (select count(*) from onejob.job j where j.state = 'running' and j.worker = w.id)
from onejob.worker w
order by w.started, w.id;

-- followers: jobs that wait for a chain to end.
select id from onejob.job where follows = $1::uuid and state = 'blocked' order by seq;

-- blockers: the chains that a job waits or waited for, in order, each by its last job.
select
    b.chain, coalesce(t.state, r.state), coalesce(t.task, r.task),
    case when t.id is null then r.result else t.result end, case when t.id is null then r.error else t.error end
from onejob.blocker b
left join onejob.job r on r.id = b.chain
left join lateral (
    select l.id, l.state, l.task, l.result, l.error from onejob.job l
    where l.chain = b.chain
    order by l.chain_index desc
    limit 1
) t on true
where b.job = $1::uuid
order by b.place;

-- blocked: jobs that wait for a chain.
select distinct b.job
from onejob.blocker b
join onejob.job j on j.id = b.job
where b.chain = $1::uuid and b.live and j.state = 'blocked'
limit $2::bigint;

-- locked: rows that must be free for a due job to start: its own, those before it in its lane, its lane's and its
-- queue's. One that a transaction has locked carries that one's number.
select 1 as rank, 'its row' as what, j.xmax as transaction from onejob.job j where j.id = $1::uuid
union all
(
    select 2, 'a job before it in its lane', o.xmax
    from onejob.job j
    join onejob.job o on o.queue = j.queue and o.lane = j.lane and o.place >= 1 and o.seq < j.seq
    where j.id = $1::uuid
    order by o.seq
    limit 100
)
union all
select 3, 'its lane', l.xmax
from onejob.job j
join onejob.lane l on l.queue = j.queue and l.key = j.lane
where j.id = $1::uuid
union all
select 4, 'the limits of its queue', q.xmax
from onejob.job j
join onejob.queue q on q.name = j.queue
where j.id = $1::uuid

-- delays: the sessions that have locked them for a while, those that hold up the job itself first, the oldest first; and
-- transactions that were prepared, which have no session.
-- A running transaction's number is held in pg_locks by its session; that of a savepoint which has been released is
-- not, and then it is one of those older transactions that use our jobs.
with held as materialized (
    select l.pid, l.virtualtransaction, l.locktype, l.mode, l.transactionid, l.relation
    from pg_catalog.pg_locks l
    where l.granted
), numbered as materialized (
    select h.pid, h.virtualtransaction, h.transactionid
    from held h
    where h.locktype = 'transactionid' and h.mode = 'ExclusiveLock'
), using_jobs as materialized (
    select h.pid, h.virtualtransaction
    from held h
    where h.relation = 'onejob.job'::regclass and h.mode in ('RowShareLock', 'RowExclusiveLock')
), clock as materialized (
    select pg_snapshot_xmax(pg_current_snapshot())::text::bigint as next
), locked as (
    select r.rank, r.what, r.transaction,
        exists (select 1 from numbered n where n.transactionid = r.transaction) as is_held
    from clock c
    cross join lateral (
        select x.*, (x.transaction::text::bigint - c.next % 4294967296 + 6442450944) % 4294967296 - 2147483648 as ahead
        from (
            /* locked */
        ) x
        where x.transaction::text <> '0'
    ) r
    where case
        when r.ahead >= 0 then true
        when c.next + r.ahead > 2 then pg_xact_status((c.next + r.ahead)::text::xid8) = 'in progress'
    end
), found as (
    (
        select distinct on (r.rank, a.pid)
            r.rank, r.what, a.pid, null as gid, a.application_name, a.client_addr, a.state, a.xact_start, a.query
        from locked r
        join pg_catalog.pg_stat_activity a on a.pid in (
            select n.pid from numbered n where n.transactionid = r.transaction
        )
        or (
            not r.is_held
            and a.backend_xid is not null and age(a.backend_xid) >= age(r.transaction)
            and a.pid in (select u.pid from using_jobs u)
        )
        where a.pid <> pg_backend_pid()
        order by r.rank, a.pid
    )
    union all
    (
        select distinct on (r.rank, p.gid) r.rank, r.what, null, p.gid, null, null, null, p.prepared, null
        from locked r
        join pg_catalog.pg_prepared_xacts p on p.transaction = r.transaction
        or (
            not r.is_held
            and age(p.transaction) >= age(r.transaction)
            and exists (
                select 1
                from numbered n
                join using_jobs u on u.pid is null and u.virtualtransaction = n.virtualtransaction
                where n.pid is null and n.transactionid = p.transaction
            )
        )
        where p.database = current_database()
        order by r.rank, p.gid
    )
)
select
    f.what, f.pid, f.gid, f.application_name, host(f.client_addr), f.state,
    (extract(epoch from clock_timestamp() - f.xact_start) * 1000)::bigint,
    case when f.state is not null then left(f.query, 200) end  -- of others one may be told nothing
from found f
where f.xact_start is null or clock_timestamp() - f.xact_start >= interval '1 second'
order by f.rank, f.xact_start
limit 5;

-- undecided: sessions that have written keys and not ended, the oldest first; not those that are about to, or wait themselves.
select
    'a key', a.pid, null, a.application_name, host(a.client_addr), a.state,
    (extract(epoch from clock_timestamp() - a.xact_start) * 1000)::bigint,
    case when a.state is not null then left(a.query, 200) end
from pg_catalog.pg_locks l
join pg_catalog.pg_stat_activity a on a.pid = l.pid
where l.granted and l.relation = 'onejob.key'::regclass and l.mode = 'RowExclusiveLock'
    and l.database = (select d.oid from pg_catalog.pg_database d where d.datname = current_database())
    and a.pid <> pg_backend_pid() and a.wait_event_type is distinct from 'Lock'
    and (
        a.xact_start is null or a.state like 'idle in transaction%'
        or a.xact_start <= clock_timestamp() - interval '1 second'
    )
order by a.xact_start
limit 5;
