-- settle: end attempts, guarded by id, state and lease; a refused one changes nothing. Ids come sorted, so that locks are
-- taken in order and what belongs to a job is found by its number. Written as blockers.sql is, and for the same reason.

-- lock: the running jobs among those to be settled.
select id from onejob.job
where id = any($1::uuid[]) and state in ('running', '') and lease = ($2::bytea[])[width_bucket(id, $1::uuid[])]
order by id
for update;

-- lock_orphans: the same for moves that are legal only if the worker is silent; one that beats at this moment is not,
-- and one that comes to beat waits until we are done.
with silent as materialized (
    select w.id from onejob.worker w
    where w.id = any(array(select j.worker from onejob.job j where j.id = any($1::uuid[])))
        and w.alive_until <= coalesce($3::bigint, (extract(epoch from clock_timestamp()) * 1000)::bigint)
    order by w.id
    for update skip locked
)
select j.id from onejob.job j
where j.id = any($1::uuid[]) and j.state in ('running', '')
    and j.lease = ($2::bytea[])[width_bucket(j.id, $1::uuid[])]
    and (
        j.worker = any(array(select s.id from silent s))
        or not exists (select 1 from onejob.worker w where w.id = j.worker)
    )
order by j.id
for update of j skip locked;

-- holds: whether a job's lane keeps its slot over a retry, by the limits that its newest job brought.
coalesce(
    (
        select t.hold from onejob.touch t
        where t.queue = j.queue and t.lane = j.lane and t.concurrency is not null
        order by t.number desc
        limit 1
    ),
    (select l.hold from onejob.lane l where l.queue = j.queue and l.key = j.lane),
    false
)

-- look: what guards the jobs that are locked, and what their end entails; and the instant.
select
    j.id, j.aborting or exists (select 1 from onejob.flag f where f.chain = coalesce(j.chain, j.id)), j.digest, j.queue,
    j.lane, j.chain, j.chain_index, j.awaited, j.lane is not null and
/* holds */
    , coalesce($2::bigint, (extract(epoch from clock_timestamp()) * 1000)::bigint)
from onejob.job j
where j.id = any($1::uuid[]);

-- apply: the ends of attempts whose jobs are locked. Only completion wipes out the last error.
update onejob.job j
set (state, ended, due, attempt, failures, crashes, misses, result, error, place) = (
    select
        g.state, ($3::bigint[])[n.n], coalesce(($4::bigint[])[n.n], j.due), j.attempt + ($5::integer[])[n.n],
        j.failures + ($6::integer[])[n.n], j.crashes + ($7::integer[])[n.n], j.misses + ($8::integer[])[n.n],
        ($9::bytea[])[n.n],
        case when g.state = 'completed' then null else coalesce(($10::text[])[n.n], j.error) end,
        ($11::smallint[])[n.n]
    from (select width_bucket(j.id, $1::uuid[]) as n) n
    cross join lateral (select ($2::text[])[n.n] as state) g
)
where j.id = any($1::uuid[]) and j.state in ('running', '')
returning j.id, j.error;

-- unflag: chains that were asked to stop have ended.
delete from onejob.flag where chain = any($1::uuid[]);

-- settled_before: which of these leases have been settled already, and how their jobs stand.
select id, state, queue from onejob.job
where id = any($1::uuid[]) and lease = ($2::bytea[])[width_bucket(id, $1::uuid[])] and state != 'running';

-- continue: the next jobs of chains, unless there are such.
insert into onejob.job (
    id, queue, task, state, priority, due, accepted, updated, since, expires, payload, options, max_crashes, lane,
    lane_plan, blockers, chain, chain_index, awaited, place
)
select
    id, queue, task, state, priority, due, $1::bigint, $1::bigint, $1::bigint, expires, payload, options, max_crashes,
    lane, lane_plan, blockers, chain, chain_index, awaited,
    case when lane is null then null when state = 'parked' then 1 else 0 end
from unnest(
    $2::uuid[], $3::text[], $4::text[], $5::text[], $6::integer[], $7::bigint[], $8::bigint[], $9::bytea[],
    $10::bytea[], $11::integer[], $12::text[], $13::bytea[], $14::integer[], $15::uuid[], $16::integer[], $17::boolean[]
) with ordinality as g (
    id, queue, task, state, priority, due, expires, payload, options, max_crashes, lane, lane_plan, blockers, chain,
    chain_index, awaited, number
)
order by number
on conflict do nothing
returning id;

-- found_instead: the jobs that have the ids of chains' next ones already.
select id, task, payload, chain from onejob.job where id = any($1::uuid[]);

-- flagged: whether somebody asked a running job to stop. Mostly nobody asked any, which is one look for all of them.
(
    j.aborting or (
        (select exists (select 1 from onejob.flag))
        and exists (select 1 from onejob.flag f where f.chain = coalesce(j.chain, j.id))
    )
)

-- token: that of the lease under which a job is settled; where all have the same, it is given once.
($10::bytea[])[case when cardinality($10::bytea[]) = 1 then 1 else width_bucket(j.id, $9::uuid[]) end]

-- completed: completions under these leases; a flagged job ends revoked. One that others may wait for gives no slot
-- back here: they are to stand in its lane by then.
changed as (
    update onejob.job j
    set ended = (select i.now from instant i), place = null,
        state = case when
/* flagged */
            then 'revoked' else 'completed' end,
        result = case when ($11::bytea[]) is not null and not
/* flagged */
            then ($11::bytea[])[width_bucket(j.id, $9::uuid[])] end,
        error = case when j.error is not null and
/* flagged */
            then j.error end
    where j.id = any($9::uuid[]) and j.state in ('running', '')
        and j.lease =
/* token */
        and not (j.awaited and j.lane is not null)
    returning
        j.id, j.queue, j.state, j.ended is not null as over, j.digest, j.lane, j.chain, j.awaited
)

-- moved: the same for all moves: how a job stands that nobody asked to stop ($12), when it is due from now on, and what
-- is added to its counts.
changed as (
    update onejob.job j
    set (state, ended, due, attempt, failures, crashes, misses, result, error, place) = (
        select
            s.state,
            case when s.over then i.now end,
            case when s.over then j.due else coalesce(i.now + ($13::bigint[])[g.n], j.due) end,
            j.attempt + ($14::integer[])[g.n], j.failures + ($15::integer[])[g.n],
            j.crashes + ($16::integer[])[g.n], j.misses + ($17::integer[])[g.n],
            case when s.state = 'completed' then ($11::bytea[])[g.n] end,
            case when s.state != 'completed' then coalesce(($18::text[])[g.n], j.error) end,
            case
                when s.over or j.lane is null then null
                when
/* holds */
                then 3
                when s.state = 'parked' then 1
                else 0
            end
        from instant i
        cross join (
            select f.n, f.flagged, ($12::text[])[f.n] as state
            from (
                select
                    width_bucket(j.id, $9::uuid[]) as n,
/* flagged */
                    as flagged
            ) f
        ) g
        cross join lateral (
            select
                g.flagged or g.state in ('completed', 'failed') as over,
                case
                    when g.flagged then 'revoked'
                    when g.state = 'waiting' and j.lane is not null then 'parked'
                    else g.state
                end as state
        ) s
    )
    where j.id = any($9::uuid[]) and j.state in ('running', '')
        and j.lease =
/* token */
        and not (j.awaited and j.lane is not null)
    returning
        j.id, j.queue, j.state, j.ended is not null as over, j.digest, j.lane, j.chain, j.awaited
)

-- entailed: what ends entail as long as nobody waits for them: keys are forgotten or remembered, flags and slots given
-- back. Chains that somebody may wait for are noted, to be looked at next, by us or by any claim.
over as (
    select coalesce(c.chain, c.id) as chain, c.state, c.awaited, coalesce(r.digest, c.digest) as digest, r.queue
    from changed c
    left join lateral (
        select j.digest, j.queue from onejob.job j where j.id = c.chain offset 0
    ) r on c.chain is not null
    where c.over
), held as (
    select k.digest, o.state, case when o.state = 'completed' then k.completed_until else k.failed_until end as until
    from over o
    cross join lateral (
        select k.digest, k.completed_until, k.failed_until from onejob.key k
        where k.digest = o.digest and k.holder = o.chain
        for update skip locked
    ) k
    where o.digest is not null
), decided as (
    select
        array_agg(h.digest) filter (where coalesce(h.until, 0) <= i.now) as forgotten,
        array_agg(h.digest order by h.digest) filter (where h.until > i.now) as kept,
        array_agg(h.state order by h.digest) filter (where h.until > i.now) as states
    from held h, instant i
), forgotten as (
    delete from onejob.key where digest = any((select d.forgotten from decided d)::bytea[])
), remembered as (
    update onejob.key k
    set follows = null, ended_at = (select i.now from instant i), (ended, forget_at) = (
        select
            d.states[width_bucket(k.digest, d.kept)],
            case
                when d.states[width_bucket(k.digest, d.kept)] = 'completed' then k.completed_until
                else k.failed_until
            end
        from decided d
    )
    where k.digest = any((select d.kept from decided d)::bytea[])
), unflagged as (
    delete from onejob.flag
    where chain = any(array(select coalesce(c.chain, c.id) from changed c where c.state = 'revoked'))
), touched as (
    insert into onejob.touch (queue, lane) select distinct queue, lane from changed where lane is not null
), noted as (
    insert into onejob.recheck (chain) select distinct chain from over where awaited returning number, chain
)

-- outcome: the instant; which settlements held, if not all, and which found a flag; the queues in which jobs or chains
-- ended, and those to which jobs came back or in which there is room again; whether slots were given back; the numbers
-- of notes, and the chains that were noted; and whether any of the jobs was more than bare.
(select i.now from instant i),
(select coalesce(array_agg(id), '{}') from changed having count(*) < cardinality($9::uuid[])),
(select array_agg(id) from changed where state = 'revoked'),
(
    select array_agg(e.queue)
    from (select queue from changed where over union select queue from over where queue is not null) e
),
(
    select array_agg(e.queue)
    from (select queue, bool_or(not over or lane is not null) as back from changed group by queue) e
    where e.back
        or exists (select 1 from onejob.queue q where q.name = e.queue and q.concurrency is not null)
),
exists (select 1 from changed where lane is not null), (select array_agg(number) from noted),
(select array_agg(chain) from noted),
exists (select 1 from changed where lane is not null or digest is not null or chain is not null or awaited)

-- no_outcome: nothing, in place of an outcome.
null, null, null, null, null, null, null, null, null

-- alone: in place of a claim.
/* claim.instant */
, unused as (
    select $2::text[], $3::bigint[], $4::bigint[], $5::text, $6::bytea, $7::bigint, $8::boolean
)

-- then_start: the claim beside it; only a look if what ends must be looked at first, because others may start by it.
asked as materialized (
    select
        q.name, q.number,
        case
            when (select count(*) from changed) < cardinality($9::uuid[]) then 0
            when exists (select 1 from changed c where c.lane is not null or (c.over and c.awaited)) then 0
            else q.room
        end as room
    from unnest($2::text[], $3::bigint[]) with ordinality as q (name, room, number)
)
,
/* claim.outlook */
,
/* claim.start_turn */

-- complete: completions only.
with
/* alone */
,
/* completed */
,
/* entailed */
select
/* outcome */
;

-- complete_and_start: completions only, and a claim.
with
/* claim.instant */
,
/* completed */
,
/* entailed */
,
/* then_start */
select
/* claim.no_job */
,
/* claim.outlook_columns */
,
/* outcome */
from outlook o
union all
select
    j.*,
/* claim.no_outlook */
,
/* no_outcome */
from started j;

-- end: any moves but those of orphans.
with
/* alone */
,
/* moved */
,
/* entailed */
select
/* outcome */
;

-- end_and_start: any moves but those of orphans, and a claim.
with
/* claim.instant */
,
/* moved */
,
/* entailed */
,
/* then_start */
select
/* claim.no_job */
,
/* claim.outlook_columns */
,
/* outcome */
from outlook o
union all
select
    j.*,
/* claim.no_outlook */
,
/* no_outcome */
from started j;

-- bare: whether a job runs under its lease, has no key, lane or chain, and nobody waits for it.
j.state in ('running', '') and j.digest is null and j.lane is null and j.chain is null
and not j.awaited and not j.aborting
and j.lease =
/* token */

-- complete_bare_and_start: completions of bare jobs, while nobody is asked to stop, and the claim beside them; nothing,
-- if they are not all bare. This is what most jobs need, and half of what `complete_and_start` has to make ready before it
-- begins. A job that is changed at that very moment may be left.
with
/* claim.instant */
,
mine as materialized (
    select j.ctid as place from onejob.job j
    where j.id = any($9::uuid[]) and not exists (select 1 from onejob.flag) and
/* bare */
),
changed as (
    update onejob.job j
    set ended = (select i.now from instant i), state = 'completed', error = null,
        result = ($11::bytea[])[width_bucket(j.id, $9::uuid[])]
    where j.ctid = any(array(select m.place from mine m))
        and (select count(*) from mine) = cardinality($9::uuid[]) and
/* bare */
    returning
        j.id, j.queue
),
over as materialized (
    select array_agg(c.queue) as queues, coalesce(sum(c.number), 0) = cardinality($9::uuid[]) as complete
    from (select queue, count(*) as number from changed group by queue) c
),
asked as materialized (
    select q.name, q.room, q.number
    from unnest($2::text[], $3::bigint[]) with ordinality as q (name, room, number)
    where (select v.complete from over v)
)
,
/* claim.outlook */
,
/* claim.start_turn */
select
/* claim.no_job */
,
/* claim.outlook_columns */
    , case when not v.complete then (select coalesce(array_agg(c.id), '{}') from changed c) end, v.queues,
    (select array_agg(q.name) from onejob.queue q where q.name = any(v.queues) and q.concurrency is not null)
from outlook o
cross join over v
union all
select
    j.*,
/* claim.no_outlook */
    , null, null, null
from started j;
