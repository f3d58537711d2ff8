-- amend: what an operator asks of jobs, whatever their state. Every write is guarded by the state that was seen.

-- instant: one for the whole operation.
coalesce($1::bigint, (extract(epoch from clock_timestamp()) * 1000)::bigint)

-- look: how the chains of some jobs stand, each by its last job; whether a job is alone, in a chain of one that waits
-- for nobody and that nobody waits for; and whether it is a dead letter or has one. A row at least, for the clock.
select c.now, s.place, s.id, s.state, s.alone, s.digest, s.lettered
from (
    select /* instant */ as now
) c
left join (
    select
        n.place, g.id, coalesce(t.state, g.state) as state,
        g.chain is null and t.state is null and g.blockers = 0 and g.state <> 'blocked' and not g.awaited
        and not exists (
            select 1 from onejob.blocker b
            where b.chain = g.id
                and exists (select 1 from onejob.job w where w.id = b.job and w.ended is null offset 0)
            offset 0
        ) as alone,
        g.digest,
        g.origin is not null or exists (select 1 from onejob.job l where l.id = n.copy offset 0) as lettered
    from unnest($2::uuid[], $3::uuid[]) with ordinality n (id, copy, place)
    cross join lateral (select * from onejob.job j where j.id = n.id offset 0) g
    left join lateral (
        select t.state from onejob.job t
        where t.chain = coalesce(g.chain, g.id)
        order by t.chain_index desc
        limit 1
    ) t on true
) s on true
order by s.place;

-- chain: the jobs of the chain that a job belongs to, the last one first.
select j.id, coalesce(j.chain, j.id), j.state, j.digest, j.queue, j.task, j.plan, j.since, j.key, j.blockers
from (select coalesce(n.chain, n.id) as root from onejob.job n where n.id = $1::uuid offset 0) c
cross join lateral (
    select * from onejob.job f where f.id = c.root
    union all
    select * from onejob.job t where t.chain = c.root
) j
order by j.chain_index desc;


-- hold: nobody else moves a job that is still in the state in which it was seen.
select 1 from onejob.job where id = $1::uuid and state = $2::text for update;

-- lock_keys: the right to take these keys, as far as they are on record.
select digest from onejob.key where digest = any($1::bytea[]) order by digest for update;

-- revoke: queued jobs that are alone end at once.
with alone as (
    select id from onejob.job
    where id = any($2::uuid[]) and state = any($3::text[]) and state in ('delayed', 'parked', 'waiting')
        and not awaited and blockers = 0
    order by id
    for update
)
update onejob.job j
set state = 'revoked', ended = $1::bigint, updated = $1::bigint, error = coalesce(j.error, $4::text), place = null
from alone a
where j.id = a.id
returning j.id, j.queue, j.digest, j.state, j.lane, j.error;

-- flag: running jobs are asked to stop, and will end revoked: whoever settles one now sees it in the very row.
with running as (
    select id from onejob.job where id = any($2::uuid[]) and state in ('running', '') order by id for no key update
)
update onejob.job j set aborting = true, updated = $1::bigint from running r where j.id = r.id returning j.id;

-- revive: ended jobs run again under their old ids, with a fresh budget and their old window.
with ended as (
    select id from onejob.job
    where id = any($2::uuid[]) and state in ('failed', 'revoked') and state = any($5::text[])
    order by id
    for update
), revived as (
    update onejob.job j
    set state = case
            when $3::uuid is not null or $4::boolean then 'blocked'
            when j.lane is not null then 'parked'
            else 'waiting'
        end,
        place = case when j.lane is not null then ($3::uuid is null and not $4::boolean)::integer end,
        follows = $3::uuid, due = $1::bigint, updated = $1::bigint, ended = null, started = null, expires = null,
        failures = 0, crashes = 0, misses = 0, aborting = false, result = null
    from ended e
    where j.id = e.id
    returning j.id, j.queue, j.lane, j.chain
), unflagged as (
    delete from onejob.flag where chain = any(array(select coalesce(r.chain, r.id) from revived r))
)
select id, queue, lane from revived;

-- new_key: a key that nobody holds is taken back; no row if somebody came first.
insert into onejob.key (
    digest, text, queue, task, holder, generation, since, completed_until, failed_until
)
values ($1::bytea, $2::text, $3::text, $4::text, $5::uuid, 1, $6::bigint, $7::bigint, $8::bigint)
on conflict (digest) do nothing
returning digest;

-- return_key: what was just taken is not needed.
delete from onejob.key where digest = $1::bytea and holder = $2::uuid;

-- give_up_key: a chain that runs again without its key.
update onejob.job set digest = null, key = null, plan = null where id = $1::uuid;
