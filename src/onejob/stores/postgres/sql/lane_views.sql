-- lane_views: what an observer sees of lanes. Claims have yet to see some of what happened to them.

-- moment: when an observer looks.
(select coalesce($1::bigint, (extract(epoch from clock_timestamp()) * 1000)::bigint) as now) i

-- plan: the limits that stand in a lane w.
(
    (
        /* lanes.brought */
    )
    union all
    select l.concurrency, l.rate_max, l.rate_per, l.hold from onejob.lane l
    where l.queue = w.queue and l.key = w.key
    union all
    (
        /* lanes.own */
    )
    limit 1
) p

-- counted: how many starts of a lane w its rate counts; none from before a while without one.
(
    select count(*) as started from onejob.start a
    where a.queue = w.queue and a.lane = w.key and a.at > i.now - p.rate_per
        and not exists (
            select 1 from onejob.touch t
            where t.queue = w.queue and t.lane = w.key and t.concurrency is not null and t.rate_max is null
        )
) c

-- in_use: what makes an observer see a lane w.
(
    c.started > 0
    or exists (
        select 1 from onejob.job j where j.queue = w.queue and j.lane = w.key and j.place is not null
        offset 0
    )
)

-- names: the lanes in use, by queue and key.
select n.queue, n.key
from (
    (
        select w.queue, w.key
        from onejob.lane w
        cross join
        /* moment */
        cross join lateral
        /* plan */
        cross join lateral
        /* counted */
        where ($2::text is null or w.queue = $2::text) and
        /* in_use */
        order by w.queue, w.key
        limit $3::bigint
    )
    union
    (
        select w.queue, w.key
        from (
            select distinct t.queue, t.lane as key from onejob.touch t
            where ($2::text is null or t.queue = $2::text)
        ) w
        cross join
        /* moment */
        cross join lateral
        /* plan */
        cross join lateral
        /* counted */
        where
        /* in_use */
        order by w.queue, w.key
        limit $3::bigint
    )
) n
order by n.queue, n.key
limit $3::bigint;

-- views: of these lanes, as far as they are in use: the limits, when the rate lets one more start if none may now, the
-- slots taken, how many jobs are ready, who takes the slots, and whose turn is next: who kept a slot goes first.
select
    w.queue, w.key, p.concurrency, p.rate_max, p.rate_per, p.hold,
    (
        select a.at + p.rate_per from onejob.start a
        where a.queue = w.queue and a.lane = w.key and a.at > i.now - p.rate_per and c.started >= p.rate_max
        order by a.at
        offset greatest(c.started - p.rate_max, 0)
        limit 1
    ),
    s.taken,
    s.ready + (select count(*) from onejob.job j where j.queue = w.queue and j.lane = w.key and j.place = 1),
    array(
        select j.id from onejob.job j
        where j.queue = w.queue and j.lane = w.key and j.place >= 2 and (j.place = 3 or j.state = 'running')
        order by j.seq
        limit $4::bigint
    ),
    h.id
from unnest($2::text[], $3::text[]) with ordinality as w (queue, key, number)
cross join
/* moment */
cross join lateral
/* plan */
cross join lateral
/* counted */
cross join lateral (
    select
        count(*) filter (where j.place = 3 or j.state = 'running') as taken,
        count(*) filter (where j.state in ('parked', 'waiting')) as ready
    from onejob.job j
    where j.queue = w.queue and j.lane = w.key and j.place >= 2
) s
left join lateral (
    select r.id
    from (
        select j.id, j.place = 3 as kept,
            case when p.concurrency = 1 then array[0, 0, j.seq] else array[-j.priority, j.due, j.seq] end as rank
        from onejob.job j
        where j.queue = w.queue and j.lane = w.key and j.place >= 2 and j.state in ('parked', 'waiting')
        union all
        (
            select j.id, false, array[0, 0, j.seq] from onejob.job j
            where p.concurrency = 1 and j.queue = w.queue and j.lane = w.key and j.place between 1 and 1
            order by j.place desc, j.seq
            limit 1
        )
        union all
        (
            select j.id, false, array[-j.priority, j.due, j.seq] from onejob.job j
            where p.concurrency > 1 and j.queue = w.queue and j.lane = w.key and j.place = 1
            order by j.priority desc, j.due, j.seq
            limit 1
        )
    ) r
    order by r.kept desc, r.rank
    limit 1
) h on true
where
/* in_use */
order by w.number;

-- ahead: how many ready jobs of its lane have their turn before a job, up to a limit.
select count(*)
from (
    select 1
    from (
        select m.seq, m.queue, m.lane as key, m.priority, m.due, m.place = 3 as kept from onejob.job m
        where m.id = $1::uuid and m.lane is not null and m.state in ('parked', 'waiting')
    ) w
    cross join lateral
    /* plan */
    join onejob.job o on o.queue = w.queue and o.lane = w.key and o.place >= 1 and o.state in ('parked', 'waiting')
    where (o.place = 3) > w.kept
        or (
            (o.place = 3) = w.kept
            and case
                when p.concurrency = 1 then o.seq < w.seq
                else (-o.priority, o.due, o.seq) < (-w.priority, w.due, w.seq)
            end
        )
    limit $2::bigint
) a;

-- waiting_unseen: since when the longest waiting job has been due of those that the next claim lets into a lane, by queue:
-- something happened to the lane that no claim has seen yet, it has a free slot, and no rate keeps it closed.
select w.queue, min(h.due)
from (select distinct t.queue, t.lane as key from onejob.touch t) w
cross join
/* moment */
left join onejob.lane a on a.queue = w.queue and a.key = w.key
cross join lateral
/* plan */
cross join lateral (
    select j.due from onejob.job j
    where j.queue = w.queue and j.lane = w.key and j.place between 1 and 1
    order by j.place desc, j.seq
    limit 1
) h
where coalesce(a.opens_at <= i.now, true) and p.concurrency > (
    select count(*) from onejob.job j where j.queue = w.queue and j.lane = w.key and j.place >= 2
)
group by w.queue;
