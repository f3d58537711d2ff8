-- lanes: whose turn it is. Slots are the jobs that take them, rates the starts they still count.

-- particular: of some lanes of a queue, the limits of those that are more than one at a time at any rate.
select key, concurrency, rate_max, rate_per, hold from onejob_lane
where queue = :queue and key in carray(:keys) and (concurrency > 1 or rate_max is not null);

-- plans: the limits of some lanes of a queue.
select key, concurrency, rate_max, rate_per, hold from onejob_lane where queue = :queue and key in carray(:keys);

-- rated: which of some lanes of a queue have a rate.
select key from onejob_lane where queue = :queue and key in carray(:keys) and rate_max is not null;

-- used_up: which of some lanes with a rate let nobody start but those whose turn it is already.
select key from onejob_lane l
where queue = :queue and key in carray(:keys)
    and rate_max <= (select count(*) from onejob_start s where s.queue = :queue and s.lane = l.key) + (
        select count(*) from onejob_job w where w.queue = :queue and w.lane = l.key and w.state = 'waiting'
    );

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

-- park_passed: in ordered lanes, a job that waits although the slot is another's or another has its turn before it.
update onejob_job
set state = 'parked', place = 1
where queue = :queue and lane in carray(:lanes) and place = 2 and state = 'waiting'
    and (
        exists (
            select 1 from onejob_job h
            where h.queue = :queue and h.lane = onejob_job.lane and h.place >= 2
                and (h.place = 3 or h.state = 'running' or h.seq < onejob_job.seq)
        )
        or exists (
            select 1 from onejob_job o
            where o.queue = :queue and o.lane = onejob_job.lane and o.place = 1 and o.seq < onejob_job.seq
        )
    );

-- release_held: a job that kept its slot needs no other.
update onejob_job
set state = 'waiting'
where queue = :queue and lane in carray(:lanes) and place = 3 and state = 'parked'
returning lane;

-- release_next: in lanes with a free slot, the ready job whose turn is next: the oldest, or the best where several may
-- run. "or fail" spares a copy of each page: an error undoes the whole transaction, never this statement alone.
update or fail onejob_job
set state = 'waiting', place = 2
where seq in (
    select
        iif(
            l.concurrency = 1,
            (
                select r.seq from onejob_job r
                where r.queue = :queue and r.lane = l.key and r.place = 1
                order by r.seq
                limit 1
            ),
            (
                select r.seq from onejob_job r
                where r.queue = :queue and r.lane = l.key and r.place = 1
                order by r.priority desc, r.due, r.seq
                limit 1
            )
        )
    from onejob_lane l
    where l.queue = :queue and l.key in carray(:lanes)
        and l.concurrency > (
            select count(*) from onejob_job h where h.queue = :queue and h.lane = l.key and h.place >= 2
        )
)
returning lane;

-- drop_empty: lanes without a live job.
delete from onejob_lane
where queue = :queue and key in carray(:lanes)
    and not exists (
        select 1 from onejob_job j where j.queue = :queue and j.lane = onejob_lane.key and j.place is not null
    );

-- taken: how many slots of a lane are taken by jobs that run or kept theirs, whether any of the latter is ready, and
-- whether any job lives.
select
    (select count(*) from onejob_job where queue = :queue and lane = :lane and place >= 2)
    - (select count(*) from onejob_job where queue = :queue and lane = :lane and place = 2 and state = 'waiting'),
    exists (
        select 1 from onejob_job
        where queue = :queue and lane = :lane and place = 3 and state in ('parked', 'waiting')
    ),
    exists (select 1 from onejob_job where queue = :queue and lane = :lane and place is not null);

-- held: the ready jobs of a lane that kept their slot.
select seq, state, priority, due from onejob_job
where queue = :queue and lane = :lane and place = 3 and state in ('parked', 'waiting');

-- ready_in_order: the jobs of a lane that may start now, and the next by acceptance.
select seq, state, priority, due from onejob_job
where queue = :queue and lane = :lane and place = 2 and state = 'waiting'
union all
select * from (
    select seq, state, priority, due from onejob_job
    where queue = :queue and lane = :lane and place = 1
    order by seq
    limit :limit
);

-- ready_by_priority: the same where priority, then due time, then acceptance decide.
select seq, state, priority, due from onejob_job
where queue = :queue and lane = :lane and place = 2 and state = 'waiting'
union all
select * from (
    select seq, state, priority, due from onejob_job
    where queue = :queue and lane = :lane and place = 1
    order by priority desc, due, seq
    limit :limit
);

-- park: one job whose turn is later.
update onejob_job set state = 'parked', place = iif(place = 2, 1, place) where seq = ? and state = 'waiting';

-- release: one job whose turn is now.
update onejob_job set state = 'waiting', place = iif(place = 1, 2, place) where seq = ? and state = 'parked';

-- look_again: when time alone will let somebody start, or make an empty lane forgettable.
update onejob_lane set opens_at = :opens_at
where queue = :queue and key = :lane and opens_at is not :opens_at;
