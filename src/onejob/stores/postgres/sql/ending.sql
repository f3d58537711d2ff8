-- ending: what the end of jobs entails. Nobody waits here for a key or for a job that waits: what is locked is left for
-- the next claim, by a row in onejob.recheck. Written as blockers.sql is, and for the same reason.

-- revoke: a queued job ends at once.
update onejob.job
set state = 'revoked', ended = $3::bigint, updated = $3::bigint, error = coalesce(error, $2::text), place = null
where id = $1::uuid and state in ('blocked', 'delayed', 'parked', 'waiting')
returning id, queue, digest, state, follows, lane, chain, awaited, error;

-- expire: the same with queued jobs whose time to start has passed, but for those that somebody has locked.
update onejob.job
set state = 'revoked', ended = $3::bigint, updated = $3::bigint, error = coalesce(error, $2::text), place = null
where id = any(array(
    select id from onejob.job
    where expires <= $3::bigint and expires is not null
        and state in ('blocked', 'delayed', 'parked', 'waiting')
    order by expires
    limit $1::bigint
    for update skip locked
))
returning id, queue, digest, state, follows, lane, chain, awaited, error;

-- flag: a chain whose last job runs is asked to stop, and will end revoked; no row if it does not run.
with running as (
    select coalesce(chain, id) as chain from onejob.job where id = $1::uuid and state in ('running', '')
), flagged as (
    insert into onejob.flag (chain, at) select chain, $2::bigint from running on conflict do nothing
)
select 1 from running;

-- roots: the first jobs of chains.
select id, digest, queue from onejob.job where id = any($1::uuid[]);

-- end_keys: the keys (by digest) of chains that have ended are forgotten or remembered, and say whom the next holder is
-- to wait for. A holder that never started leaves whom it was waiting for to whoever takes its key next.
with held as (
    select
        k.digest, o.state, case when k.follows = any($2::uuid[]) then o.instead else k.follows end as follows,
        case when o.state = 'completed' then k.completed_until else k.failed_until end as until
    from onejob.key k
    cross join lateral (
        select
            ($3::text[])[array_position($2::uuid[], k.holder)] as state,
            ($4::uuid[])[array_position($2::uuid[], k.follows)] as instead
    ) o
    where k.digest = any($1::bytea[]) and (k.holder = any($2::uuid[]) or k.follows = any($2::uuid[]))
    for update of k skip locked
), decided as (
    select
        array_agg(digest) filter (where forgotten) as forgotten,
        array_agg(digest order by digest) filter (where not forgotten) as kept,
        array_agg(state order by digest) filter (where not forgotten) as states,
        array_agg(follows order by digest) filter (where not forgotten) as follows
    from (
        select *, state is not null and follows is null and coalesce(until, 0) <= $5::bigint as forgotten from held
    ) h
), forgotten as (
    delete from onejob.key where digest = any((select d.forgotten from decided d)::bytea[])
)
update onejob.key k
set (follows, ended, ended_at, forget_at) = (
    select
        d.follows[n.n], coalesce(d.states[n.n], k.ended),
        case when d.states[n.n] is null then k.ended_at else $5::bigint end,
        case
            when d.states[n.n] is null then k.forget_at
            when d.states[n.n] = 'completed' then coalesce(k.completed_until, $5::bigint)
            else coalesce(k.failed_until, $5::bigint)
        end
    from decided d
    cross join lateral (select width_bucket(k.digest, d.kept) as n) n
)
where k.digest = any((select d.kept from decided d)::bytea[]);

-- mark: somebody waits for these chains: their last jobs say so from now on, if they live. Whether they have ended is
-- null for those that are gone (no id), or that somebody has locked. How they stand is sure only if the job that was
-- locked is no newer than what this statement sees. Notes under these numbers are taken.
with found as (
    select
        c.chain, coalesce(t.id, r.id) as id, l.over, l.late_blocked,
        l.version = coalesce(t.version, r.version) as sure, coalesce(t.state, r.state) as state,
        case when t.id is null then r.error else t.error end as error,
        case when t.id is null then r.follows else t.follows end as follows, r.digest, coalesce(r.queue, t.queue) as queue
    from unnest($1::uuid[]) as c (chain)
    left join lateral (
        select n.id, n.xmin as version, n.state, n.error, n.follows, n.queue from onejob.job n
        where n.chain = c.chain
        order by n.chain_index desc
        limit 1
    ) t on true
    left join lateral (
        select j.id, j.xmin as version, j.state, j.error, j.follows, j.queue, j.digest from onejob.job j
        where j.id = c.chain
        offset 0
    ) r on true
    left join lateral (
        select
            j.ended is not null as over, j.state = 'blocked' and j.chain is not null as late_blocked,
            j.xmin as version
        from onejob.job j
        where j.id = coalesce(t.id, r.id)
        for update skip locked
    ) l on true
), marked as (
    update onejob.job set awaited = true
    where id = any(array(select f.id from found f where not f.over)) and not awaited
), taken as (
    delete from onejob.recheck
    where number = any(array(
        select n.number from onejob.recheck n where n.number = any($2::bigint[]) for update skip locked
    ))
)
select chain, id, state, error, follows, digest, queue, over, late_blocked, sure from found;

-- note: let the next claim look at these chains.
insert into onejob.recheck (chain) select unnest($1::uuid[]);

-- take: chains that are to be looked at again, oldest first.
delete from onejob.recheck
where number = any(array(
    select number from onejob.recheck order by number limit $1::bigint for update skip locked
))
returning chain;
