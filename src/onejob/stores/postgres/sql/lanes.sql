-- lanes: whose turn it is. Slots are the jobs that take them, rates the starts they still count. What happens to a lane
-- is noted as a touch; only claims look at lanes, and lock them while they do.

-- touch: something happened to these lanes.
insert into onejob.touch (queue, lane)
select distinct t.queue, t.lane from unnest($1::text[], $2::text[]) as t (queue, lane);

-- touch_with_plans: jobs came to these lanes; where they brought limits, those stand from now on.
insert into onejob.touch (queue, lane, concurrency, rate_max, rate_per, hold)
select t.queue, t.lane, t.concurrency, t.rate_max, t.rate_per, t.hold
from unnest($1::text[], $2::text[], $3::integer[], $4::integer[], $5::bigint[], $6::boolean[])
    as t (queue, lane, concurrency, rate_max, rate_per, hold);

-- brought: the newest limits that were brought to a lane w and that no claim has seen yet.
select t.concurrency, t.rate_max, t.rate_per, t.hold from onejob.touch t
where t.queue = w.queue and t.lane = w.key and t.concurrency is not null
order by t.number desc
limit 1

-- own: the limits that a live job of a lane w brought.
select
    coalesce((o.plan ->> 'concurrency')::integer, 1) as concurrency, (o.plan #>> '{rate,max}')::integer as rate_max,
    round((o.plan #>> '{rate,per}')::numeric * 1000)::bigint as rate_per,
    coalesce((o.plan ->> 'hold')::boolean, false) as hold
from (
    select convert_from(j.lane_plan, 'UTF8')::jsonb as plan from onejob.job j
    where j.queue = w.queue and j.lane = w.key and j.place is not null
    order by j.place desc, j.seq
    limit 1
) o

-- plans: the limits that stand in these lanes, where any do.
select w.queue, w.key, p.concurrency, p.rate_max, p.rate_per, p.hold
from unnest($1::text[], $2::text[]) as w (queue, key)
cross join lateral (
    (
        /* brought */
    )
    union all
    select l.concurrency, l.rate_max, l.rate_per, l.hold from onejob.lane l
    where l.queue = w.queue and l.key = w.key
    limit 1
) p;

-- take: lock the lanes to which something happened, or for which it is time, and forget what happened to them. Those
-- that another claim has locked are left to be looked at again. Limits beside those on record are to stand instead; the
-- first column says that more may have happened, the last that there was a while without a rate.
with first_touches as materialized (
    select t.place, t.queue, t.number, t.key, t.concurrency, t.rate_max, t.rate_per, t.hold
    from unnest($2::text[]) as q (name)
    cross join lateral (
        select a.ctid as place, a.queue, a.number, a.lane as key, a.concurrency, a.rate_max, a.rate_per, a.hold
        from onejob.touch a
        where a.queue = q.name
        order by a.number
        limit 1000
    ) t
    limit 1000
),
brought as materialized (
    select distinct on (t.queue, t.key)
        t.queue, t.key, t.concurrency, t.rate_max, t.rate_per, t.hold,
        bool_or(t.rate_max is null) over (partition by t.queue, t.key) as unrated
    from first_touches t
    where t.concurrency is not null
    order by t.queue, t.key, t.number desc
),
wanted as materialized (
    select t.queue, t.key from first_touches t
    union
    select o.queue, o.key
    from (
        select l.queue, l.key
        from unnest($2::text[]) as q (name)
        cross join lateral (
            select a.queue, a.key from onejob.lane a
            where a.queue = q.name and a.opens_at is not null and a.opens_at <= $1::bigint
            order by a.opens_at
            limit 1000
        ) l
        limit 1000
    ) o
    union
    select o.queue, o.key
    from (
        select l.queue, l.key
        from unnest($2::text[]) as q (name)
        cross join lateral (
            select a.queue, a.key from onejob.lane a
            where a.queue = q.name and a.opens_at is not null and a.opens_at - a.rate_per > $1::bigint + 1000
            order by a.opens_at - a.rate_per
            limit 1000
        ) l
        limit 1000
    ) o
),
found as materialized (
    select w.queue, w.key, l.known, l.mine, l.concurrency, l.rate_max, l.rate_per, l.hold
    from wanted w
    left join lateral (
        select true as known, k.mine, k.concurrency, k.rate_max, k.rate_per, k.hold
        from (select 1 from onejob.lane a where a.queue = w.queue and a.key = w.key limit 1) there
        left join lateral (
            select true as mine, a.concurrency, a.rate_max, a.rate_per, a.hold
            from onejob.lane a
            where a.queue = w.queue and a.key = w.key
            for update skip locked
        ) k on true
    ) l on true
),
made as (
    insert into onejob.lane (queue, key, concurrency, rate_max, rate_per, hold)
    select w.queue, w.key, p.concurrency, p.rate_max, p.rate_per, p.hold
    from found w
    left join brought b on b.queue = w.queue and b.key = w.key
    cross join lateral (
        select b.concurrency, b.rate_max, b.rate_per, b.hold where b.queue is not null
        union all
        (
            /* own */
        )
        union all
        select 1, null, null, false
        limit 1
    ) p
    where w.known is null
    order by w.queue, w.key
    on conflict do nothing
    returning queue, key, concurrency, rate_max, rate_per, hold
),
mine as materialized (
    select queue, key, concurrency, rate_max, rate_per, hold from made
    union all
    select f.queue, f.key, f.concurrency, f.rate_max, f.rate_per, f.hold from found f where f.mine
),
seen as (
    delete from onejob.touch
    where ctid = any(
        array(select t.place from first_touches t join mine m on m.queue = t.queue and m.key = t.key)
    )
)
select
    (select count(*) from first_touches) >= 1000,
    m.queue, m.key, m.concurrency, m.rate_max, m.rate_per, m.hold, b.concurrency, b.rate_max, b.rate_per, b.hold,
    b.unrated
from mine m
left join brought b on b.queue = m.queue and b.key = m.key;

-- lock: lock lanes that have a rate; those that another claim has locked are left out.
select l.queue, l.key
from unnest($1::text[], $2::text[]) as w (queue, key)
cross join lateral (
    select a.queue, a.key from onejob.lane a
    where a.queue = w.queue and a.key = w.key and coalesce(a.rate_max, 0) > 0
    for update skip locked
) l;

-- put: the limits of lanes that are locked, from now on.
update onejob.lane l
set concurrency = n.concurrency, rate_max = n.rate_max, rate_per = n.rate_per, hold = n.hold, opens_at = null
from unnest($1::text[], $2::text[], $3::integer[], $4::integer[], $5::bigint[], $6::boolean[])
    as n (queue, key, concurrency, rate_max, rate_per, hold)
where l.queue = n.queue and l.key = n.key;

-- arrange: in lanes that are locked, let exactly those ready jobs wait whose turn it is; drop lanes that are not in
-- use. What somebody else has locked cannot be moved: a job that waits keeps its slot and its start, one that is ready
-- is passed over, or holds up its lane if that keeps order, and the lane is to be looked at again.
--
-- Only who has locked a lane gives its slots away, so all that can have changed since this statement's snapshot is that
-- some are free by now. Jobs that wait are locked only where they may have to make way: others want to start them. All
-- starts on record count: those that do not any more have been forgotten just before. Conditions are written such that
-- no plan can take another index than those of lanes (`coalesce` implies no partial one), and lane by lane.
--
-- Most lanes have no rate, and whoever has a slot is to keep it. Then free slots are for the best in line, and nothing else
-- has to be looked at: for one that is free, that is the first.
with lanes as materialized (
    select l.queue, l.key, l.concurrency, l.rate_max, first.place, first.seq,
        l.concurrency = 1 and l.rate_max is null and coalesce(first.place, 0) < 2 as is_plain
    from unnest($1::text[], $2::text[], $3::integer[], $4::integer[]) as l (queue, key, concurrency, rate_max)
    left join lateral (
        select j.place, j.seq from onejob.job j
        where j.queue = l.queue and j.lane = l.key and j.place is not null
        order by j.place desc, j.seq
        limit 1
    ) first on true
),
slots as materialized (
    select l.queue, l.key, l.concurrency, l.rate_max, l.place is null as unused, held.taken, held.waiting, held.kept,
        line.rank, starts.made, crowd.is_there as crowded,
        l.concurrency > 1 and l.rate_max is null and held.kept = 0 and not crowd.is_there as is_wide
    from lanes l
    cross join lateral (
        select
            count(*) as taken,
            count(*) filter (where j.state = 'waiting') as waiting,
            count(*) filter (where j.state = 'parked') as kept,
            max(
                case when l.concurrency = 1 then array[0, 0, j.seq] else array[-j.priority, j.due, j.seq] end
            ) filter (where j.place = 2 and j.state = 'waiting') as last
        from onejob.job j
        where j.queue = l.queue and j.lane = l.key and j.place >= 2
    ) held
    cross join lateral (
        select count(*) as made from onejob.start a
        where l.rate_max is not null and a.queue = l.queue and a.lane = l.key
    ) starts
    left join lateral (
        (
            select array[0, 0, j.seq] as rank from onejob.job j
            where l.concurrency = 1 and j.queue = l.queue and j.lane = l.key and j.place between 1 and 1
            order by j.place desc, j.seq
            limit 1
        )
        union all
        (
            select array[-j.priority, j.due, j.seq] from onejob.job j
            where l.concurrency > 1 and j.queue = l.queue and j.lane = l.key and j.place = 1
            order by j.priority desc, j.due, j.seq
            limit 1
        )
    ) line on true
    cross join lateral (
        select held.waiting > 0 and coalesce(
            held.taken > l.concurrency or line.rank < held.last or starts.made + held.waiting > l.rate_max
                or (l.rate_max is not null and held.kept > 0),
            false
        ) as is_there
    ) crowd
    where not l.is_plain
),
turns as materialized (
    select l.queue, l.key, array_remove(array[free_head.seq], null) as released, null::bigint[] as passed,
        l.place is null as unused, l.place = 1 and free_head.seq is null as missed
    from lanes l
    left join lateral (
        select j.seq from onejob.job j
        where l.place = 1 and j.seq = l.seq and coalesce(j.place, 0) = 1 and coalesce(j.state, '') = 'parked'
        for update skip locked
    ) free_head on true
    where l.is_plain
    union all
    select s.queue, s.key, best.seqs, null, s.unused, coalesce(left_out.found, false)
    from slots s
    cross join lateral (
        select count(*) as found, array_agg(b.seq) as seqs
        from (
            select r.seq
            from (
                select j.seq from onejob.job j
                where j.queue = s.queue and j.lane = s.key and j.place = 1
                    and coalesce(j.state, '') = 'parked'
                order by j.priority desc, j.due, j.seq
                limit 10000
                for update skip locked
            ) r
            limit greatest(s.concurrency - s.taken, 0)
        ) b
    ) best
    left join lateral (
        select true as found from onejob.job j
        where s.concurrency - s.taken > best.found and j.queue = s.queue and j.lane = s.key and j.place = 1
            and j.seq <> all(coalesce(best.seqs, '{}'))
        order by j.priority desc, j.due, j.seq
        limit 1
    ) left_out on true
    where s.is_wide
    union all
    select l.queue, l.key, t.released, t.passed,
        l.unused and l.made = 0,
        l.kept > movable.kept or (l.crowded and l.waiting > movable.waiting)
            or (head.wanted and free_head.seq is null) or left_out.found as missed
    from slots l
    cross join lateral (
        select
            count(*) filter (where m.place = 2) as turns,
            count(*) filter (where m.place = 3) as held,
            count(*) filter (where m.state = 'waiting') as waiting,
            count(*) filter (where m.state = 'parked') as kept,
            min(m.seq) filter (where m.place = 2) as first,
            array_agg(m.seq) as seqs, array_agg(m.place) as places, array_agg(m.state) as states,
            array_agg(m.priority) as priorities, array_agg(m.due) as dues
        from (
            select j.seq, j.place, j.state, j.priority, j.due from onejob.job j
            where (l.kept > 0 or l.crowded) and j.queue = l.queue and j.lane = l.key and j.place >= 2
                and (j.state = 'parked' or (l.crowded and j.state = 'waiting'))
            for update skip locked
        ) m
    ) movable
    cross join lateral (
        select case
            when l.rate_max is null then 2147483647
            else greatest(l.rate_max - l.made - l.waiting + movable.waiting, 0)
        end as starts
    ) leave
    cross join lateral (
        select least(
            greatest(l.concurrency - l.taken + movable.turns, 0), leave.starts - least(movable.held, leave.starts)
        ) as starts
    ) room
    cross join lateral (
        select l.concurrency = 1 and room.starts > 0 and l.rank is not null
            and l.rank[3] < coalesce(movable.first, 9223372036854775807) as wanted
    ) head
    left join lateral (
        select j.seq from onejob.job j
        where head.wanted and j.seq = l.rank[3] and coalesce(j.place, 0) = 1 and coalesce(j.state, '') = 'parked'
        for update skip locked
    ) free_head on true
    cross join lateral (
        select
            count(*) as found, array_agg(b.seq) as seqs, array_agg(b.priority) as priorities, array_agg(b.due) as dues
        from (
            select s.seq, s.priority, s.due
            from (
                select j.seq, j.priority, j.due from onejob.job j
                where l.concurrency > 1 and room.starts > 0 and j.queue = l.queue and j.lane = l.key and j.place = 1
                    and coalesce(j.state, '') = 'parked'
                order by j.priority desc, j.due, j.seq
                limit 10000
                for update skip locked
            ) s
            limit room.starts
        ) b
    ) best
    left join lateral (
        select true as found from onejob.job j
        where l.concurrency > 1 and room.starts > best.found and j.queue = l.queue and j.lane = l.key and j.place = 1
            and j.seq <> all(coalesce(best.seqs, '{}'))
        order by j.priority desc, j.due, j.seq
        limit 1
    ) left_out on true
    cross join lateral (
        select
            array_agg(r.seq) filter (where r.has_turn and r.is_free and not r.waits) as released,
            array_agg(r.seq) filter (where r.waits and not r.has_turn) as passed
        from (
            select c.seq, c.waits, c.is_free,
                row_number() over (partition by c.held order by c.rank)
                    <= case when c.held then leave.starts else room.starts end as has_turn
            from (
                select m.seq, m.place = 3 as held, m.state = 'waiting' as waits, true as is_free,
                    case
                        when l.concurrency = 1 then array[0, 0, m.seq]
                        else array[-m.priority, m.due, m.seq]
                    end as rank
                from unnest(movable.seqs, movable.places, movable.states, movable.priorities, movable.dues)
                    as m (seq, place, state, priority, due)
                union all
                select l.rank[3], false, false, free_head.seq is not null, l.rank where head.wanted
                union all
                select b.seq, false, false, true, array[-b.priority, b.due, b.seq]
                from unnest(best.seqs, best.priorities, best.dues) as b (seq, priority, due)
            ) c
        ) r
    ) t
    where not l.is_wide
),
released as (
    update onejob.job set state = 'waiting', place = case place when 1 then 2 else place end
    where seq = any(array(select unnest(t.released) from turns t))
    returning queue
),
passed as (
    update onejob.job set state = 'parked', place = case place when 2 then 1 else place end
    where seq = any(array(select unnest(t.passed) from turns t))
),
again as (
    insert into onejob.touch (queue, lane) select t.queue, t.key from turns t where t.missed
    returning queue
),
dropped as (
    delete from onejob.lane
    where ctid = any(
        array(
            select l.place from turns t
            cross join lateral (
                select a.ctid as place from onejob.lane a where a.queue = t.queue and a.key = t.key limit 1
            ) l
            where t.unused
        )
    )
)
select (select array_agg(distinct r.queue) from released r), exists (select 1 from again);

-- look_again: when time alone will let somebody start in lanes with a rate that are locked, or make an empty one
-- forgettable.
with standing as materialized (
    select l.queue, l.key, l.rate_max, l.rate_per,
        (select count(*) from onejob.start s where s.queue = l.queue and s.lane = l.key) as started,
        (
            select count(*) from onejob.job j
            where j.queue = l.queue and j.lane = l.key and j.place >= 2 and coalesce(j.state, '') = 'waiting'
        ) as waiting,
        exists (
            select 1 from onejob.job j
            where j.queue = l.queue and j.lane = l.key and j.place is not null
            offset 0
        ) as live,
        exists (select 1 from onejob.job j where j.queue = l.queue and j.lane = l.key and j.place = 1 offset 0)
            or exists (
                select 1 from onejob.job j
                where j.queue = l.queue and j.lane = l.key and j.place = 3 and coalesce(j.state, '') = 'parked'
                offset 0
            ) as lined_up
    from unnest($1::text[], $2::text[]) as w (queue, key)
    cross join lateral (
        select a.queue, a.key, a.rate_max, a.rate_per from onejob.lane a
        where a.queue = w.queue and a.key = w.key and coalesce(a.rate_max, 0) > 0
        limit 1
    ) l
),
opening as materialized (
    select s.queue, s.key,
        (
            select a.at + s.rate_per from onejob.start a
            where a.queue = s.queue and a.lane = s.key and n.number between 1 and s.started
            order by a.at
            offset greatest(n.number - 1, 0)
            limit 1
        ) as opens_at
    from standing s
    cross join lateral (
        select case
            when not s.live then s.started
            when s.lined_up and s.started + s.waiting >= s.rate_max then s.started - s.rate_max + s.waiting + 1
        end as number
    ) n
)
update onejob.lane l
set opens_at = o.opens_at
from opening o
where l.queue = o.queue and l.key = o.key and l.opens_at is distinct from o.opens_at;
