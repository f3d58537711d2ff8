-- inspect: reads for people; none of them blocks a writer.

-- job: one job, whole.
select
    id, queue, task, state, payload, priority, accepted, updated, due, expires, started, ended, attempt,
    failures, crashes, max_crashes, misses, items, worker, aborting, follows, key, digest, plan, options,
    progress, result, error, origin, origin_queue, lane, chain,
    chain_index, blockers
from onejob_job
where id = :id;

-- matching: what a filter says of a job j, for the two statements below.
j.seq > :after and j.seq < :before
and (:states is null or j.state in (select value from json_each(:states)))
and (:accepted_by is null or j.accepted <= :accepted_by)
and (:accepted_after is null or j.accepted > :accepted_after)
and (:ended_by is null or j.ended <= :ended_by)
and (:keys is null or j.key in (select value from json_each(:keys)))
and (:lanes is null or j.lane in (select value from json_each(:lanes)))
and (:queues is null or exists (select 1 from json_each(:queues) where j.queue glob value))
and (:origins is null or exists (select 1 from json_each(:origins) where j.origin_queue glob value))
and (:tasks is null or exists (select 1 from json_each(:tasks) where j.task glob value))
and (:ids is null or exists (select 1 from json_each(:ids) where j.id between unhex(value ->> 0) and unhex(value ->> 1)))
and (
    :chains is null
    or exists (
        select 1 from json_each(:chains)
        where coalesce(j.chain, j.id) between unhex(value ->> 0) and unhex(value ->> 1)
    )
)
and (
    :schedules is null
    or exists (
        select 1 from json_each(:schedules)
        where case when json_valid(cast(j.options as text)) then cast(j.options as text) ->> '$.schedule' end glob value
    )
)
and (:errors is null or exists (select 1 from json_each(:errors) where instr(lower(j.error), value)))
and (:args is null or onejob_holds(j.payload, :args))

-- jobs: a page of jobs, newest first.
select
    id, queue, task, state, payload, priority, accepted, updated, due, expires, started, ended, attempt,
    failures, crashes, max_crashes, misses, items, worker, aborting, follows, key, digest, plan, options,
    progress, result, error, origin, origin_queue, lane, chain,
    chain_index, blockers, seq
from onejob_job j
where /* matching */
order by j.seq desc
limit :limit;

-- count: how many jobs match.
select count(*) from onejob_job j where /* matching */;

-- reach: between which places the jobs stand whose ids begin so.
select min(j.seq), max(j.seq)
from json_each(:ids) p
join onejob_job j on j.id between unhex(p.value ->> 0) and unhex(p.value ->> 1);

-- waiting_since: since when the longest waiting job of each queue has been due; dead letters wait for a person.
select queue, min(due)
from onejob_job
where state = 'waiting'
    and seq not in (select seq from onejob_job where origin_queue is not null and state = 'waiting')
group by queue;

-- key: one key's record beside its holder.
select text, queue, task, generation, absorbed, differing, ended_at from onejob_key where digest = :digest;

-- keys: the digests of keys on record, the most recently taken first.
select digest from onejob_key
where (:queue is null or queue = :queue) and (:text is null or text = :text)
order by since desc
limit :limit;

-- counts: jobs per queue and state.
select queue, state, count(*) from onejob_job group by queue, state;

-- workers: workers on record with the number of jobs each runs.
select
    w.id, w.queues, w.host, w.pid, w.concurrency, w.started, w.seen, w.alive_until > :now,
    (select count(*) from onejob_job j where j.state = 'running' and j.worker = w.id)
from onejob_worker w
order by w.started;

-- followers: jobs that wait for a chain to end.
select id from onejob_job where follows = :id order by seq;

-- in_use: what makes an observer see a lane l, which claims may not have forgotten yet.
(
    exists (select 1 from onejob_job j where j.queue = l.queue and j.lane = l.key and j.place is not null)
    or exists (select 1 from onejob_start s where s.queue = l.queue and s.lane = l.key and s.at > :now - l.rate_per)
)

-- lane: a lane's limits, the slots taken, and how many jobs are ready.
select
    l.key, l.concurrency, l.rate_max, l.rate_per, l.hold, l.opens_at,
    (
        select count(*) from onejob_job j
        where j.queue = l.queue and j.lane = l.key and j.place >= 2 and (j.place = 3 or j.state = 'running')
    ),
    (select count(*) from onejob_job j where j.queue = l.queue and j.lane = l.key and j.place = 1)
    + (
        select count(*) from onejob_job j
        where j.queue = l.queue and j.lane = l.key and j.place >= 2 and j.state in ('parked', 'waiting')
    )
from onejob_lane l
where l.queue = :queue and l.key = :key and /* in_use */;

-- lanes: the lanes in use, by queue and key.
select queue, key from onejob_lane l
where (:queue is null or queue = :queue) and /* in_use */
order by queue, key
limit :limit;

-- slot_holders: who takes the slots of a lane.
select id from onejob_job
where queue = :queue and lane = :lane and place >= 2 and (place = 3 or state = 'running')
order by seq
limit :limit;

-- head_in_order: whose turn is next in a lane that keeps the order of acceptance; who kept a slot goes first.
select id from (
    select id, seq, place = 3 as kept from onejob_job
    where queue = :queue and lane = :lane and place >= 2 and state in ('parked', 'waiting')
    union all
    select * from (
        select id, seq, false from onejob_job
        where queue = :queue and lane = :lane and place = 1
        order by seq
        limit 1
    )
)
order by kept desc, seq
limit 1;

-- head_by_priority: whose turn is next in any other lane.
select id from (
    select id, seq, priority, due, place = 3 as kept from onejob_job
    where queue = :queue and lane = :lane and place >= 2 and state in ('parked', 'waiting')
    union all
    select * from (
        select id, seq, priority, due, false from onejob_job
        where queue = :queue and lane = :lane and place = 1
        order by priority desc, due, seq
        limit 1
    )
)
order by kept desc, priority desc, due, seq
limit 1;

-- ahead: how many ready jobs of its lane have their turn before a job, up to a limit.
select count(*) from (
    select 1
    from onejob_job me
    join onejob_lane l on l.queue = me.queue and l.key = me.lane
    join onejob_job o on o.queue = me.queue and o.lane = me.lane and o.place >= 1
        and o.state in ('parked', 'waiting')
    where me.id = :id and me.state in ('parked', 'waiting')
        and (
            (o.place = 3) > (me.place = 3)
            or (
                (o.place = 3) = (me.place = 3)
                and iif(
                    l.concurrency = 1,
                    o.seq < me.seq,
                    (-o.priority, o.due, o.seq) < (-me.priority, me.due, me.seq)
                )
            )
        )
    limit :limit
);

-- chain: the ids of all jobs of the chain that a job belongs to, by place.
select id from onejob_job
where id = coalesce((select chain from onejob_job where id = :id), :id)
    or chain = coalesce((select chain from onejob_job where id = :id), :id)
order by chain_index;

-- last: the id of the last of them.
select id from onejob_job
where id = coalesce(
    (
        select t.id from onejob_job t
        where t.chain = coalesce((select chain from onejob_job where id = :id), :id)
        order by t.chain_index desc
        limit 1
    ),
    :id
);

-- blockers: the chains that a job waits or waited for, in order, each by its last job.
select b.chain, coalesce(t.state, r.state), coalesce(t.task, r.task), iif(t.id is null, r.result, t.result),
    iif(t.id is null, r.error, t.error)
from onejob_blocker b
left join onejob_job r on r.id = b.chain
left join onejob_job t on t.chain = b.chain and t.chain_index = (
    select max(l.chain_index) from onejob_job l where l.chain = b.chain
)
where b.job = :id
order by b.place;

-- blocked: jobs that wait for a chain.
select distinct b.job
from onejob_blocker b
join onejob_job j on j.id = b.job
where b.chain = :chain and b.live = 1 and j.state = 'blocked'
limit :limit;
