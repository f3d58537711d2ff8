-- prune: remove what has been kept long enough; memory of a window outlives its job. What others have locked is left
-- for the next round. What each row depends on is looked up by itself (`offset 0`), as in enqueue.sql.

-- clock: the instant of the whole operation.
select coalesce($1::bigint, (extract(epoch from clock_timestamp()) * 1000)::bigint);

-- waits: whoever takes a key k next waits for a chain that lives.
(
    exists (select 1 from onejob.job w where w.id = k.follows and w.ended is null)
    or exists (select 1 from onejob.job w where w.chain = k.follows and w.ended is null)
)

-- named: the keys that still name the chains in `last`, and until when they remember such an end.
named as (
    select
        k.digest, f.fingerprint, l.state, l.ended,
        case when l.state = 'completed' then k.completed_until else k.failed_until end as until,
        /* waits */ as waits
    from last l
    join onejob.job f on f.id = l.root
    join onejob.key k on k.digest = f.digest and k.holder = l.root

-- dropping: what goes with the chains in `going`; keys remember their end, unless nothing is to remember it.
forgotten as (
    delete from onejob.key k using named n
    where k.digest = n.digest and not n.waits and coalesce(n.until, n.ended) <= n.ended
), remembered as (
    update onejob.key k
    set ended = n.state, ended_at = n.ended, forget_at = coalesce(n.until, n.ended), fingerprint = n.fingerprint
    from named n
    where k.digest = n.digest and not (not n.waits and coalesce(n.until, n.ended) <= n.ended)
), members as (
    select j.id from going g join onejob.job j on j.id = g.root
    union all
    select j.id from going g join onejob.job j on j.chain = g.root
), dropped as (
    delete from onejob.job j using members m where j.id = m.id
), unblocked as (
    delete from onejob.blocker where job = any(array(select m.id from members m))
), unflagged as (
    delete from onejob.flag where chain = any(array(select m.id from members m))
)

-- drop: whole chains that have ended, each by its last job.
with last as (
    select j.id, coalesce(j.chain, j.id) as root, j.state, j.ended
    from onejob.job j
    where j.id = any($1::uuid[]) and j.ended is not null
    order by j.id
    for update
), /* named */
    order by k.digest
    for update of k
), going as (
    select * from last
), /* dropping */
select id from going;

-- old_chains: chains that ended so, past the retention of that; but not if they are yet to be read.
with last as (
    select j.id, coalesce(j.chain, j.id) as root, j.state, j.ended
    from onejob.job j
    where j.state = $1::text and j.ended is not null and j.ended <= $2::bigint
        and not exists (
            select 1 from onejob.job t
            where t.chain = coalesce(j.chain, j.id) and t.chain_index > j.chain_index
            offset 0
        )
        and not exists (
            select 1 from onejob.blocker b
            where b.chain = coalesce(j.chain, j.id)
                and exists (select 1 from onejob.job w where w.id = b.job and w.ended is null offset 0)
            offset 0
        )
    order by j.ended
    limit $3::bigint
    for update of j skip locked
), /* named */
    for update of k skip locked
), going as (
    select l.* from last l
    where not exists (
        select 1
        from onejob.job f
        join onejob.key k on k.digest = f.digest and k.holder = l.root
        where f.id = l.root and not exists (select 1 from named n where n.digest = k.digest)
    )
), /* dropping */
select count(*) from members;

-- drop_keys: keys whose memory has run out.
with old as (
    select k.digest
    from onejob.key k
    where k.forget_at is not null and k.forget_at <= $1::bigint and not /* waits */
    limit $2::bigint
    for update of k skip locked
)
delete from onejob.key k using old o where k.digest = o.digest returning k.digest;

-- drop_workers: workers long dead that hold no job.
with dead as (
    select w.id
    from onejob.worker w
    where w.alive_until <= $1::bigint
        and not exists (select 1 from onejob.job j where j.state = 'running' and j.worker = w.id)
    for update of w skip locked
)
delete from onejob.worker w using dead d where w.id = d.id returning w.id;

-- drop_flags: what chains were asked that ended at that very moment.
with stale as (
    select f.chain
    from onejob.flag f
    where not exists (select 1 from onejob.job j where j.id = f.chain and j.ended is null)
        and not exists (select 1 from onejob.job j where j.chain = f.chain and j.ended is null)
    limit $1::bigint
    for update of f skip locked
)
delete from onejob.flag f using stale s where f.chain = s.chain;

-- drop_lanes: lanes with a rate that nobody has used within its window, nor is about to.
with unused as materialized (
    select l.ctid as place, l.queue, l.key
    from onejob.lane l
    where l.rate_max is not null
        and not exists (
            select 1 from onejob.job j
            where j.queue = l.queue and j.lane = l.key and j.place is not null
            offset 0
        )
        and not exists (
            select 1 from onejob.start s
            where s.queue = l.queue and s.lane = l.key and s.at > $1::bigint - l.rate_per
            offset 0
        )
        and not exists (select 1 from onejob.touch t where t.queue = l.queue and t.lane = l.key offset 0)
    limit $2::bigint
    for update of l skip locked
), starts as (
    delete from onejob.start
    where ctid = any(
        array(
            select s.place
            from unused u
            cross join lateral (
                select a.ctid as place from onejob.start a where a.queue = u.queue and a.lane = u.key limit 10000
            ) s
        )
    )
)
delete from onejob.lane where ctid = any(array(select u.place from unused u));
