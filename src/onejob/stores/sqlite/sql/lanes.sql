-- lanes: whose turn it is. Slots are the jobs that take them, rates the starts they still count.

-- particular: of some lanes of a queue, the limits of those that are more than one at a time at any rate.
select key, concurrency, rate_max, rate_per, hold from onejob_lane
where queue = :queue and key in carray(:keys) and (concurrency > 1 or rate_max is not null);

-- plans: the limits of some lanes of a queue.
select key, concurrency, rate_max, rate_per, hold from onejob_lane where queue = :queue and key in carray(:keys);

-- put: a lane's limits, from now on.
insert into onejob_lane (queue, key, concurrency, rate_max, rate_per, hold)
values (:queue, :key, :concurrency, :rate_max, :rate_per, :hold)
on conflict (queue, key) do update set
    concurrency = excluded.concurrency, rate_max = excluded.rate_max, rate_per = excluded.rate_per,
    hold = excluded.hold, opens_at = null;

-- opened: lanes of a queue that it is time to look at again.
select key from onejob_lane where queue = :queue and opens_at <= :now and opens_at is not null
union all
select key from onejob_lane where queue = :queue and opens_at - rate_per > :now and opens_at is not null;

-- park_passed: in ordered lanes, a job that waits although the slot is taken or another has its turn before it.
update onejob_job
set state = 'parked'
where queue = :queue and lane in carray(:lanes) and slot = 0 and state = 'waiting' and ended is null
    and (
        exists (
            select 1 from onejob_job h
            where h.queue = :queue and h.lane = onejob_job.lane and h.slot = 1 and h.ended is null
        )
        or exists (
            select 1 from onejob_job o
            where o.queue = :queue and o.lane = onejob_job.lane and o.slot = 0 and o.ended is null
                and o.state in ('parked', 'waiting') and o.seq < onejob_job.seq
        )
    );

-- release_held: a job that kept its slot needs no other.
update onejob_job
set state = 'waiting'
where queue = :queue and lane in carray(:lanes) and slot = 1 and state = 'parked' and ended is null
returning lane;

-- release_next: in lanes with a free slot, the ready job whose turn is next: the oldest, or the best where several may
-- run. "or fail" spares a copy of each page: an error undoes the whole transaction, never this statement alone.
update or fail onejob_job
set state = 'waiting'
where seq in (
    select
        iif(
            l.concurrency = 1,
            (
                select r.seq from onejob_job r
                where r.queue = :queue and r.lane = l.key and r.slot = 0 and r.state = 'parked' and r.ended is null
                order by r.seq
                limit 1
            ),
            (
                select r.seq from onejob_job r
                where r.queue = :queue and r.lane = l.key and r.slot = 0 and r.state = 'parked'
                order by r.priority desc, r.due, r.seq
                limit 1
            )
        )
    from onejob_lane l
    where l.queue = :queue and l.key in carray(:lanes)
        and l.concurrency > (
            select count(*) from onejob_job h
            where h.queue = :queue and h.lane = l.key and h.slot = 1 and h.ended is null
        ) + (
            select count(*) from onejob_job w
            where w.queue = :queue and w.lane = l.key and w.slot = 0 and w.state = 'waiting' and w.ended is null
        )
)
returning lane;

-- drop_empty: lanes without a live job.
delete from onejob_lane
where queue = :queue and key in carray(:lanes)
    and not exists (
        select 1 from onejob_job j
        where j.queue = :queue and j.lane = onejob_lane.key and j.ended is null
    );

-- taken: how many slots of a lane are taken, whether a job that kept its slot is ready, and whether any job lives.
select
    (select count(*) from onejob_job where queue = :queue and lane = :lane and slot = 1 and ended is null),
    exists (
        select 1 from onejob_job
        where queue = :queue and lane = :lane and slot = 1 and state in ('parked', 'waiting') and ended is null
    ),
    exists (select 1 from onejob_job where queue = :queue and lane = :lane and ended is null);

-- held: the ready jobs of a lane that kept their slot.
select seq, state, priority, due from onejob_job
where queue = :queue and lane = :lane and slot = 1 and state in ('parked', 'waiting') and ended is null;

-- ready_in_order: the jobs of a lane that may start now, and the next by acceptance.
select seq, state, priority, due from onejob_job
where queue = :queue and lane = :lane and slot = 0 and state = 'waiting' and ended is null
union all
select * from (
    select seq, state, priority, due from onejob_job
    where queue = :queue and lane = :lane and slot = 0 and state = 'parked' and ended is null
    order by seq
    limit :limit
);

-- ready_by_priority: the same where priority, then due time, then acceptance decide.
select seq, state, priority, due from onejob_job
where queue = :queue and lane = :lane and slot = 0 and state = 'waiting' and ended is null
union all
select * from (
    select seq, state, priority, due from onejob_job
    where queue = :queue and lane = :lane and slot = 0 and state = 'parked'
    order by priority desc, due, seq
    limit :limit
);

-- park: one job whose turn is later.
update onejob_job set state = 'parked' where seq = ? and state = 'waiting';

-- release: one job whose turn is now.
update onejob_job set state = 'waiting' where seq = ? and state = 'parked';

-- look_again: when time alone will let somebody start, or make an empty lane forgettable.
update onejob_lane set opens_at = :opens_at
where queue = :queue and key = :lane and opens_at is not :opens_at;
