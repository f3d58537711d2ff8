-- rates: the starts that a rate counts; those of a queue's own rate have the lane ''.

-- tidy: of these queues' and lanes' starts, those that a clock since set back has left in the future count from now,
-- and those that no rate counts any more are forgotten. It has an instant of its own, later than that of every start
-- which the locks that were taken before it have waited for; what is on record after it counts.
with
/* claim.instant */
,
brought_back as (
    update onejob.start
    set at = (select i.now from instant i)
    where ctid = any(
        array(
            select a.place
            from instant i
            cross join unnest($2::text[], $3::text[]) as w (queue, lane)
            cross join lateral (
                select s.ctid as place from onejob.start s
                where s.queue = w.queue and s.lane = w.lane and s.at > i.now + 1000
                order by s.at desc
                limit 10000
            ) a
        )
    )
)
delete from onejob.start
where ctid = any(
    array(
        select a.place
        from instant i
        cross join unnest($2::text[], $3::text[], $4::bigint[]) as w (queue, lane, per)
        cross join lateral (
            select s.ctid as place from onejob.start s
            where s.queue = w.queue and s.lane = w.lane and s.at <= i.now - w.per
            order by s.at
            limit 10000
        ) a
    )
);

-- forget: nothing counts the starts of these lanes any more.
delete from onejob.start s
using unnest($1::text[], $2::text[]) as w (queue, lane)
where s.queue = w.queue and s.lane = w.lane;

-- windows: how many starts the rates of these queues count, and when one more may start where none may now.
select w.queue, s.started,
    (
        select a.at + w.per from onejob.start a
        where a.queue = w.queue and a.lane = '' and s.started >= w.most
        order by a.at
        offset greatest(s.started - w.most, 0)
        limit 1
    )
from unnest($1::text[], $2::bigint[], $3::bigint[]) as w (queue, most, per)
cross join lateral (select count(*) as started from onejob.start a where a.queue = w.queue and a.lane = '') s;

-- record: starts that a rate counts: those of queues (with the lane ''), and those of lanes that have one.
insert into onejob.start (queue, lane, at, job, lease)
select s.queue, s.lane, $1::bigint, s.job, $2::bytea
from unnest($3::text[], $4::text[], $5::uuid[]) as s (queue, lane, job)
left join lateral (
    select true as found from onejob.lane l
    where l.queue = s.queue and l.key = s.lane and coalesce(l.rate_max, 0) > 0
    limit 1
) rated on true
where s.lane = '' or rated.found
returning queue, lane;
