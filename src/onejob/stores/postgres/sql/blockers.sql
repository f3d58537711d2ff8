-- blockers: chains that a job waits for. Each is a row that says whether its chain still lives; it is changed only by
-- who has locked the job that waits.
--
-- How these statements are written leaves no plan a choice, because one that was made for small tables must do for big
-- ones: rows are found by `= any(array)` or by a lateral query that is not merged (`offset 0`); and beside an id no
-- state is written so that it could be looked up in the index of that state (in ('blocked', ''), `live::integer = 1`).

-- chains: the chains that some jobs belong to.
select id, coalesce(chain, id) from onejob.job where id = any($1::uuid[]);

-- standing: how chains stand, each by its last job: that one's id, state, error and whom it was still waiting for; and
-- the digest and queue of its first job. No id for a chain that is gone.
select
    c.chain, coalesce(t.id, r.id), coalesce(t.state, r.state), case when t.id is null then r.error else t.error end,
    case when t.id is null then r.follows else t.follows end, r.digest, coalesce(r.queue, t.queue)
from unnest($1::uuid[]) as c (chain)
left join lateral (
    select l.id, l.state, l.error, l.follows, l.queue from onejob.job l
    where l.chain = c.chain
    order by l.chain_index desc
    limit 1
) t on true
left join lateral (select * from onejob.job j where j.id = c.chain offset 0) r on true;

-- put: chains that jobs wait for.
insert into onejob.blocker (job, place, chain, needed, live)
select * from unnest($1::uuid[], $2::integer[], $3::uuid[], $4::boolean[], $5::boolean[]);

-- lock: nobody else changes what a job waits for.
select 1 from onejob.job where id = $1::uuid for update;

-- of: the chains that a job waits or waited for.
select place, chain, needed from onejob.blocker where job = $1::uuid order by place;

-- renew: which of the chains that a job waits for live.
update onejob.blocker set live = chain = any($2::uuid[]) where job = $1::uuid;

-- freed: jobs that followed a chain which has ended ($1) follow whom that one was waiting for ($2), or nobody; who waits
-- for nobody any more can start.
update onejob.job j
set (follows, state, place) = (
    select
        n.follows, s.state, case when j.place = 0 and s.state in ('parked', 'waiting') then 1 else j.place end
    from (select ($2::uuid[])[array_position($1::uuid[], j.follows)] as follows) n
    cross join lateral (
        select
            case
                when n.follows is not null then 'blocked'
                when j.blockers > 0 and exists (
                    select 1 from onejob.blocker b where b.job = j.id and b.live
                ) then 'blocked'
                when j.due > $3::bigint then 'delayed'
                when j.lane is not null then 'parked'
                else 'waiting'
            end as state
    ) s
)

-- waiting: who waits for chains that have ended, as a follower (needed is null) or blocked; ours from now on, unless
-- somebody has locked it or it has moved on. Those who only follow are released at once: where they are now.
with waiting as materialized (
    select w.id, w.chain, w.needed, l.blockers
    from (
        select id, follows as chain, null::boolean as needed
        from onejob.job
        where follows = any($1::uuid[]) and state in ('blocked', '')
        union all
        select b.job, b.chain, b.needed
        from onejob.blocker b
        cross join lateral (
            select 1 from onejob.job j where j.id = b.job and j.state in ('blocked', '') offset 0
        ) j
        where b.chain = any($1::uuid[]) and b.live::integer = 1
    ) w
    left join lateral (
        select j.blockers from onejob.job j where j.id = w.id and j.state in ('blocked', '') for update skip locked
    ) l on true
), released as (
/* freed */
    where j.id = any(array(select w.id from waiting w where w.blockers = 0))
        and j.state in ('blocked', '') and j.follows = any($1::uuid[])
    returning j.id, j.queue, j.lane, j.state, j.follows
)
select w.id, w.chain, w.needed, w.blockers is not null, r.queue, r.lane, r.state, r.follows
from waiting w
left join released r on r.id = w.id;

-- let_go: chains that have ended hold up these jobs no more.
update onejob.blocker
set live = false
where chain = any($2::uuid[]) and job = any($1::uuid[]) and live::integer = 1;

-- release: the same with those ($4) who wait for blockers too.
/* freed */
where j.id = any($4::uuid[]) and j.state in ('blocked', '')
    and (
        j.follows = any($1::uuid[])
        or (j.follows is null and not exists (select 1 from onejob.blocker b where b.job = j.id and b.live offset 0))
    )
returning j.id, j.queue, j.lane, j.state, j.follows;

-- strand: jobs (sorted) fail because a chain that each of them needed did not complete.
update onejob.job
set state = 'failed', ended = $3::bigint, updated = $3::bigint, place = null,
    error = ($2::text[])[width_bucket(id, $1::uuid[])]
where id = any($1::uuid[]) and state in ('blocked', '')
returning id, queue, digest, state, follows, lane, chain, awaited, error, options;

-- awaited: somebody waits for a chain, or has yet to read what it returned.
select 1
from onejob.blocker b
cross join lateral (select 1 from onejob.job j where j.id = b.job and j.ended is null offset 0) j
where b.chain = $1::uuid
limit 1;

-- drop: what jobs that are deleted waited for.
delete from onejob.blocker where job = any($1::uuid[]);

-- waits_of: whom chains wait for, by their first jobs and by their continuations.
select j.root, w.chain
from (
    select id, id as root, follows, state from onejob.job where id = any($1::uuid[])
    union all
    select id, chain, follows, state from onejob.job where chain = any($1::uuid[])
) j
cross join lateral (
    select b.chain from onejob.blocker b where b.job = j.id and b.live
    union all
    select j.follows
) w
where j.state in ('blocked', '') and w.chain is not null;

-- one_by_one: whether a chain may come to wait for itself is looked at by one transaction at a time.
select pg_advisory_xact_lock(hashtextextended('onejob.blocker: circles', 0))::text;

-- one_by_one_now: the same, if nobody else does so now.
select pg_try_advisory_xact_lock(hashtextextended('onejob.blocker: circles', 0));
