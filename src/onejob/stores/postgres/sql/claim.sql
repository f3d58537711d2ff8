-- claim: start waiting jobs for one worker; a claim is a start, and never looks at keys. What waits may start as far
-- as its lane is concerned.

-- claimed: what the run of a job needs of its row.
j.id, j.task, j.payload, j.options, j.attempt, j.failures, j.crashes, j.max_crashes, j.misses, j.accepted, j.due,
j.key, j.priority, j.seq, j.lane, j.chain, j.chain_index, j.blockers, j.queue

-- instant: the moment at which it all happens.
instant as materialized (
    select coalesce($1::bigint, (extract(epoch from clock_timestamp()) * 1000)::bigint) as now
)

-- asked: the queues to visit, in order, and how many jobs may start in each.
asked as materialized (
    select q.name, q.room, q.number
    from unnest($2::text[], $3::bigint[]) with ordinality as q (name, room, number)
)

-- outlook: what time brings to these queues, and what keeps them from being quiet. Each is one probe of an index,
-- written as the first row in its order, so that no plan reads more. Jobs are started only under a lock of the table
-- of queues, which who sets limits waits for: a locking clause takes it, even where there is nothing to lock. Starts
-- that others have just made may seem to lie ahead a little: a clock that was set back shows by more than a second.
outlook as materialized (
    select
        i.now,
        exists (select 1 from onejob.queue l where l.name = any($2::text[]))
            or exists (select 1 from onejob.queue l where false for key share) as limited,
        coalesce(
            (
                select j.expires from onejob.job j
                where j.expires is not null and j.state in ('blocked', 'delayed', 'parked', 'waiting')
                order by j.expires
                limit 1
            ) <= i.now,
            false
        ) as overdue,
        exists (select 1 from onejob.recheck) as unresolved,
        a.due, a.due_in_lane, a.opens_at, coalesce(a.closed > i.now + 1000, false) as set_back, a.touched, a.rated
    from instant i
    cross join (
        select
            min(
                (
                    select j.due from onejob.job j
                    where j.state = 'delayed' and j.lane is null and j.queue = q.name
                    order by j.due
                    limit 1
                )
            ) as due,
            min(
                (
                    select j.due from onejob.job j
                    where j.state = 'delayed' and j.lane is not null and j.queue = q.name
                    order by j.due
                    limit 1
                )
            ) as due_in_lane,
            min(
                (
                    select l.opens_at from onejob.lane l
                    where l.queue = q.name and l.opens_at is not null
                    order by l.opens_at
                    limit 1
                )
            ) as opens_at,
            max(
                (
                    select l.opens_at - l.rate_per from onejob.lane l
                    where l.queue = q.name and l.opens_at is not null
                    order by l.opens_at - l.rate_per desc
                    limit 1
                )
            ) as closed,
            count((select t.number from onejob.touch t where t.queue = q.name order by t.number limit 1)) > 0 as touched,
            coalesce(
                bool_or(
                    (
                        select l.queue from onejob.lane l
                        where l.queue >= q.name and l.rate_max is not null
                        order by l.queue
                        limit 1
                    ) = q.name
                ),
                false
            ) as rated
        from asked q
    ) a
)

-- start_turn: up to $4[1] waiting jobs of the queues asked for start, best priority first, then by due time, then by
-- acceptance; after the first $4[2] only as long as none of their queue has a lane, was once lost with its worker, or must
-- never be. None if there is more to be done in these queues first, unless $8. Rows locked by others are skipped. What is
-- locked stays where it is, so that it is found again by its place; unless it was changed after the statement began, and
-- then it does not start, but counts as skipped.
turn as materialized (
    select n.place
    from (
        select t.place, t.plain, row_number() over () as number
        from asked q
        cross join lateral (
            select s.place, bool_and(s.plain) over (rows between unbounded preceding and current row) as plain
            from (
                select j.ctid as place, j.lane is null and j.crashes = 0 and j.max_crashes > 0 as plain
                from onejob.job j
                where j.state = 'waiting' and j.queue = q.name
                    and (j.expires is null or j.expires > (select i.now from instant i))
                order by j.priority desc, j.due, j.seq
                limit 10000
                for update skip locked
            ) s
            limit q.room
        ) t
        where $8::boolean or (
            select
                not (o.limited or o.overdue or o.unresolved or o.set_back or o.touched or o.rated)
                and coalesce(least(o.due, o.due_in_lane, o.opens_at) > o.now, true)
            from outlook o
        )
    ) n
    where n.number <= ($4::bigint[])[2] or n.plain
    limit ($4::bigint[])[1]
),
started as (
    update onejob.job j
    set state = 'running', attempt = j.attempt + 1, lease = $6::bytea, worker = $5::text,
        started = (select i.now from instant i)
    where j.ctid = any(array(select t.place from turn t))
    returning
        /* claimed */
),
registered as (
    insert into onejob.worker (id, queues, host, pid, concurrency, started, seen, alive_until)
    select $5::text, '[]', '', 0, 0, i.now, i.now, i.now + $7::bigint
    from instant i
    where not exists (select 1 from onejob.worker w where w.id = $5::text)
    on conflict (id) do nothing
)

-- start_ctes: all that a start needs.
/* instant */
,
/* asked */
,
/* outlook */
,
/* start_turn */

-- outlook_columns: what the queues have to expect, and whether a job was skipped because somebody has it.
o.now, o.limited, o.overdue, o.unresolved, o.due, o.due_in_lane, o.opens_at, o.set_back, o.touched, o.rated,
(select count(*) from started) < ($4::bigint[])[2] and exists (
    select 1 from asked q
    cross join lateral (
        select 1 from onejob.job j
        where j.state = 'waiting' and j.queue = q.name and j.seq <> all(array(select s.seq from started s))
            and (j.expires is null or j.expires > (select i.now from instant i))
        order by j.priority desc, j.due, j.seq
        limit 1
    ) w
    where q.room > (select count(*) from started s where s.queue = q.name)
) as skipped

-- no_job: nothing, in place of a job.
null::uuid, null, null::bytea, null::bytea, null::integer, null::integer, null::integer, null::integer, null::integer,
null::bigint, null::bigint, null, null::integer, null::bigint, null, null::uuid, null::integer, null::integer, null

-- no_outlook: nothing, in place of an outlook.
null, null, null, null, null, null, null, null, null, null, null

-- start: start jobs where nothing else has to be done first: one statement, one commit. One row has the outlook, and
-- there is one for each job; what all share is not sent with each.
with
/* start_ctes */
select
/* no_job */
,
/* outlook_columns */
from outlook o
union all
select
    j.*,
/* no_outlook */
from started j;

-- look: what the queues have to expect, and nothing else.
with
/* instant */
,
/* asked */
,
/* outlook */
select
    o.now, o.limited, o.overdue, o.unresolved, o.due, o.due_in_lane, o.opens_at, o.set_back, o.touched, o.rated, false
from outlook o;

-- started_before: what this very claim started, if its reply was lost.
select
/* claimed */
from onejob.job j
where j.worker = $1::text and j.state = 'running' and j.lease = $2::bytea;

-- be_patient: wait for longer than usual in this transaction: those who lock what is locked next are never long.
select set_config('lock_timeout', $1::text, true);

-- enter: the limits of those queues that have any. Whoever starts jobs there comes one after the other.
select q.name, q.concurrency, q.rate_max, q.rate_per, q.paused
from onejob.queue q
where q.name = any($1::text[])
order by q.name
for no key update;

-- promote: delayed jobs of these queues whose time has come wait from now on; those of lanes wait for their turn. Tells
-- whether more of the former, and of the latter, may be left.
with plain as materialized (
    select j.seq
    from unnest($2::text[]) as q (name)
    cross join lateral (
        select d.seq from onejob.job d
        where d.state = 'delayed' and d.lane is null and d.queue = q.name and d.due <= $1::bigint
        order by d.due
        limit 1000
        for update skip locked
    ) j
    limit 1000
),
laned as materialized (
    select j.seq, q.name as queue, j.lane
    from unnest($2::text[]) as q (name)
    cross join lateral (
        select d.seq, d.lane from onejob.job d
        where d.state = 'delayed' and d.lane is not null and d.queue = q.name and d.due <= $1::bigint
        order by d.due
        limit 5000
        for update skip locked
    ) j
    limit 5000
),
now_waiting as (
    update onejob.job set state = 'waiting' where seq = any(array(select p.seq from plain p))
),
now_parked as (
    update onejob.job set state = 'parked', place = case place when 0 then 1 else place end
    where seq = any(array(select l.seq from laned l))
),
touched as (
    insert into onejob.touch (queue, lane) select distinct l.queue, l.lane from laned l
)
select (select count(*) from plain) >= 1000, (select count(*) from laned) >= 5000;

-- running: how many jobs of limited queues run.
select q.name, (select count(*) from onejob.job j where j.state = 'running' and j.queue = q.name)
from unnest($1::text[]) as q (name);
