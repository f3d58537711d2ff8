-- enqueue: accept newcomers; key and job are written together or not at all.
--
-- Jobs and keys are looked up one by one (`offset 0`), never joined: a plan that was made while a table was empty would
-- read all of it, and plans outlive that.

-- clock: the instant at which an operation happens, as $1.
clock as materialized (
    select coalesce($1::bigint, (extract(epoch from clock_timestamp()) * 1000)::bigint) as now
)

-- holder: keys' records joined with the jobs that hold them; no job columns if one is gone. A chain that has gone on
-- beyond its first job, which has ended then, runs until its last job has ended, and then stands as that one does. A job's
-- version is another after every change.
select
    k.holder,
    case
        when j.id is not null and j.ended is null then j.state
        else coalesce(
            (
                select case when t.ended is null then 'running' else t.state end
                from onejob.job t
                where t.chain = k.holder
                order by t.chain_index desc
                limit 1
            ),
            j.state,
            k.ended
        )
    end as state, k.since, k.completed_until, k.failed_until,
    coalesce(j.accepted, k.since) as accepted, coalesce(j.due, k.since) as due, coalesce(j.attempt, 1) as attempt,
    coalesce(j.priority, 0) as priority, j.options, j.expires, k.follows,
    coalesce(j.fingerprint, k.fingerprint) as fingerprint, coalesce(j.items, 0) as items,
    coalesce(j.size, octet_length(j.payload), 0) as size, j.calls, j.id is null as gone, k.digest, j.lane,
    j.version::text as version
from onejob.key k
left join lateral (select j.*, j.xmin as version from onejob.job j where j.id = k.holder offset 0) j on true

-- find_holders: keys' records with the jobs that hold them.
/* holder */
where k.digest = any($1::bytea[]);

-- one: one newcomer takes its key if there is no record of it, and is then made. Returns a row with the instant and
-- how many keys were taken; the key's record, as it was before; and the newcomer's id, if it was accepted before.
with
/* clock */
, taken as (
    insert into onejob.key (digest, text, queue, task, holder, generation, since, completed_until, failed_until)
    select
        $2::bytea, $3::text, $4::text, $5::text, $6::uuid, 1, c.now,
        case when $7::bigint < 1::bigint << 62 then c.now else 0 end + $7::bigint,
        case when $8::bigint < 1::bigint << 62 then c.now else 0 end + $8::bigint
    from clock c
    where not exists (select from onejob.key k where k.digest = $2::bytea offset 0)
        and not exists (select from onejob.job j where j.id = $6::uuid offset 0)
    on conflict (digest) do nothing
    returning holder
), made as (
    insert into onejob.job (
        id, queue, task, state, priority, due, accepted, updated, since, expires, payload, options, max_crashes, items,
        digest, key, plan, fingerprint, size
    )
    select
        t.holder, $4::text, $5::text, case when $9::bigint > 0 then 'delayed' else 'waiting' end, $10::integer,
        c.now + $9::bigint, c.now, c.now, c.now, c.now + $11::bigint, $12::bytea, $13::bytea, $14::integer,
        $15::integer, $2::bytea, $3::text, $16::bytea, $17::bytea, $18::integer
    from taken t
    cross join clock c
    on conflict (id) do nothing
)
select h.*, null::bigint, null::bigint
from (
    /* holder */
    where k.digest = $2::bytea
) h
union all
select
    null, null, null, null, null, null, null, null, null, null, null, null, null, null, null, null, null, null, null,
    null, c.now, (select count(*) from taken)
from clock c
union all
select
    j.id, null, null, null, null, null, null, null, null, null, null, null, null, null, null, null, null, null, null,
    null, null, null
from onejob.job j
where j.id = $6::uuid;

-- taking: those of the keys given of which there is no record, in order, become the newcomers'.
with
/* clock */
, known as materialized (
    select j.id from onejob.job j where j.id = any($4::uuid[] || $10::uuid[])
), held as materialized (
    /* holder */
    where k.digest = any($2::bytea[])
), taken as (
    insert into onejob.key (digest, text, queue, task, holder, generation, since, completed_until, failed_until)
    select
        g.digest, g.text, ($6::text[])[g.kind], ($7::text[])[g.kind], g.newcomer, 1, c.now,
        case when ($8::bigint[])[g.kind] < 1::bigint << 62 then c.now else 0 end + ($8::bigint[])[g.kind],
        case when ($9::bigint[])[g.kind] < 1::bigint << 62 then c.now else 0 end + ($9::bigint[])[g.kind]
    from unnest($2::bytea[], $3::text[], $4::uuid[], $5::integer[]) as g (digest, text, newcomer, kind)
    cross join clock c
    where not $11::boolean
        and g.digest not in (select h.digest from held h)
        and g.newcomer not in (select k.id from known k)
    order by g.digest

-- taken: what `take` returns.
    returning 1
)
select h.*, null::bigint, null::bigint
from held h
union all
select
    null, null, null, null, null, null, null, null, null, null, null, null, null, null, null, null, null, null, null,
    null, c.now, (select count(*) from taken)
from clock c
union all
select
    k.id, null, null, null, null, null, null, null, null, null, null, null, null, null, null, null, null, null, null,
    null, null, null
from known k

-- take: of the keys given ($2 digest, $3 text, $4 holder, $5 kind, which is a place in $6 queue, $7 task, $8 and $9 how
-- long they are remembered), those of which there is no record become the newcomers'. Returns the records of all
-- others, as they were before; a row with the instant and how many were taken; and which of these
-- newcomers, or of the ids $10, were accepted before. With $11 nothing is taken.
/* taking */
    on conflict (digest) do nothing
/* taken */;

-- take_new: the same, as long as nobody takes one of them at the same time; faster, and fails if somebody does.
/* taking */
/* taken */;

-- make_all: newcomers ($2 digest, $3 key, $4 id, $5 kind, $6 payload, $7 fingerprint, $8 size; the kind is a place in $9
-- and what follows, 1 if missing, and so is what all of them lack) take their keys and are made, if there is no record of
-- any of these keys; else nothing is written. Returns what `take` does; fails if somebody brings one at the same time.
with
/* clock */
, held as materialized (
    /* holder */
    where k.digest = any($2::bytea[])
), known as materialized (
    select j.id from onejob.job j
    where j.id = any(
        array(
            select g.id from unnest($2::bytea[], $4::uuid[]) as g (digest, id)
            where g.digest in (select h.digest from held h)
        )
    )
), taken as (
    insert into onejob.key (digest, text, queue, task, holder, generation, since, completed_until, failed_until)
    select
        g.digest, g.text, ($9::text[])[coalesce(g.kind, 1)], ($10::text[])[coalesce(g.kind, 1)], g.id, 1, c.now,
        case when ($19::bigint[])[coalesce(g.kind, 1)] < 1::bigint << 62 then c.now else 0 end
            + ($19::bigint[])[coalesce(g.kind, 1)],
        case when ($20::bigint[])[coalesce(g.kind, 1)] < 1::bigint << 62 then c.now else 0 end
            + ($20::bigint[])[coalesce(g.kind, 1)]
    from clock c
    cross join unnest($2::bytea[], $3::text[], $4::uuid[], $5::integer[]) as g (digest, text, id, kind)
    where not exists (select 1 from held)
    order by g.digest
    returning 1
), made as (
    insert into onejob.job (
        id, accepted, updated, since, queue, task, state, priority, due, expires, payload, options, max_crashes, items,
        digest, key, plan, fingerprint, size
    )
    select
        g.id, c.now, c.now, c.now, ($9::text[])[coalesce(g.kind, 1)], ($10::text[])[coalesce(g.kind, 1)],
        ($11::text[])[coalesce(g.kind, 1)], ($12::integer[])[coalesce(g.kind, 1)],
        c.now + ($13::bigint[])[coalesce(g.kind, 1)], c.now + ($14::bigint[])[coalesce(g.kind, 1)], g.payload,
        ($15::bytea[])[coalesce(g.kind, 1)], ($16::integer[])[coalesce(g.kind, 1)],
        ($17::integer[])[coalesce(g.kind, 1)], g.digest, g.text, ($18::bytea[])[coalesce(g.kind, 1)], g.fingerprint,
        g.size
    from clock c
    cross join unnest(
        $2::bytea[], $3::text[], $4::uuid[], $5::integer[], $6::bytea[], $7::bytea[], $8::integer[]
    ) with ordinality as g (digest, text, id, kind, payload, fingerprint, size, number)
    where (select count(*) from taken) > 0
    order by g.number
)
select h.*, null::bigint, null::bigint
from held h
union all
select
    null, null, null, null, null, null, null, null, null, null, null, null, null, null, null, null, null, null, null,
    null, c.now, (select count(*) from taken)
from clock c
union all
select
    k.id, null, null, null, null, null, null, null, null, null, null, null, null, null, null, null, null, null, null,
    null, null, null
from known k;

-- look: what `take` returns of the keys $2 and the newcomers $3, and nothing is taken.
with
/* clock */
, held as materialized (
    /* holder */
    where k.digest = any($2::bytea[])
), known as materialized (
    select j.id from onejob.job j where j.id = any($3::uuid[])
)
select h.*, null::bigint, null::bigint
from held h
union all
select
    null, null, null, null, null, null, null, null, null, null, null, null, null, null, null, null, null, null, null,
    null, c.now, 0
from clock c
union all
select
    k.id, null, null, null, null, null, null, null, null, null, null, null, null, null, null, null, null, null, null,
    null, null, null
from known k;

-- lock_keys: whoever has locked a key's record may take it from its holder, once he has looked at it again.
select k.digest from onejob.key k where k.digest = any($1::bytea[]) order by k.digest for update;

-- lock_jobs: lock queued jobs, however long that takes; and their versions.
select j.id, j.xmin::text
from onejob.job j
where j.id = any($1::uuid[]) and j.state in ('blocked', 'delayed', 'parked', 'waiting')
order by j.id
for update;

-- lock_free_jobs: those that nobody else has locked.
select j.id, j.xmin::text
from onejob.job j
where j.id = any($1::uuid[]) and j.state in ('blocked', 'delayed', 'parked', 'waiting')
order by j.id
for update skip locked;

-- pin_jobs: hold queued jobs in their state, however long that takes; claims pass them over.
select j.id, j.xmin::text
from onejob.job j
where j.id = any($1::uuid[]) and j.state in ('blocked', 'delayed', 'parked', 'waiting')
order by j.id
for share;

-- pin_free_jobs: those that nobody is about to change.
select j.id, j.xmin::text
from onejob.job j
where j.id = any($1::uuid[]) and j.state in ('blocked', 'delayed', 'parked', 'waiting')
order by j.id
for share skip locked;

-- savepoint: what comes next can be undone by itself.
savepoint onejob_enqueue;

-- rollback_to: undo what came after the savepoint.
rollback to savepoint onejob_enqueue;

-- release_savepoint: what came after the savepoint stays.
release savepoint onejob_enqueue;

-- savepoint_wait: what comes next may wait too long for a lock.
savepoint onejob_wait;

-- rollback_to_wait: it did, and nothing is lost but the lock.
rollback to savepoint onejob_wait;

-- release_wait: it did not.
release savepoint onejob_wait;

-- be_patient: how long this transaction waits for a lock from now on; returns how long it did before.
select current_setting('lock_timeout'), set_config('lock_timeout', $1::text, true);

-- insert_job: one new job without key, lane or blockers; an id that is already there is left alone.
insert into onejob.job (
    id, queue, task, state, priority, due, accepted, updated, since, expires, payload, options, max_crashes
)
select
    $2::uuid, $3::text, $4::text, $5::text, $6::integer, c.now + $7::bigint, c.now, c.now, c.now, c.now + $8::bigint,
    $9::bytea, $10::bytea, $11::integer
from (select coalesce($1::bigint, (extract(epoch from clock_timestamp()) * 1000)::bigint) as now offset 0) c
on conflict (id) do nothing;

-- inserting: rows of new jobs, in order.
with
/* clock */
insert into onejob.job (
    id, accepted, updated, queue, task, state, priority, due, since, expires, payload, options, max_crashes, items,
    follows, digest, key, plan, fingerprint, calls, size, lane, lane_plan, place, blockers, awaited
)
select
    g.id, c.now, c.now, ($12::text[])[coalesce(g.kind, 1)], ($13::text[])[coalesce(g.kind, 1)],
    ($14::text[])[coalesce(g.kind, 1)], ($15::integer[])[coalesce(g.kind, 1)],
    c.now + ($16::bigint[])[coalesce(g.kind, 1)], c.now + ($17::bigint[])[coalesce(g.kind, 1)],
    c.now + ($18::bigint[])[coalesce(g.kind, 1)], g.payload, ($19::bytea[])[coalesce(g.kind, 1)],
    ($20::integer[])[coalesce(g.kind, 1)], ($21::integer[])[coalesce(g.kind, 1)], g.follows, g.digest, g.key,
    ($22::bytea[])[coalesce(g.kind, 1)], g.fingerprint, g.calls, g.size, g.lane,
    ($23::bytea[])[coalesce(g.kind, 1)], ($24::smallint[])[coalesce(g.kind, 1)],
    ($25::integer[])[coalesce(g.kind, 1)], ($26::boolean[])[coalesce(g.kind, 1)]
from clock c
cross join unnest(
    $2::uuid[], $3::integer[], $4::bytea[], $5::uuid[], $6::bytea[], $7::text[], $8::bytea[], $9::bytea[],
    $10::integer[], $11::text[]
) with ordinality as g (
    id, kind, payload, follows, digest, key, fingerprint, calls, size, lane, number
)
order by g.number

-- insert_jobs: new jobs ($2 id, $3 kind, $4 payload, $5 chain to follow, $6 digest, $7 key, $8 fingerprint, $9 calls,
-- $10 size, $11 lane), in order; instants count from now. An array is missing where all of it is null; the kind is a
-- place in those that follow, 1 if missing. An id that is already there is left alone.
/* inserting */
on conflict (id) do nothing;

-- insert_new_jobs: the same for ids that are not there yet; faster, and fails if one is.
/* inserting */;

-- upsert: the key points to the new holder, whatever it pointed to before.
on conflict (digest) do update set
    text = excluded.text, task = excluded.task, holder = excluded.holder, generation = k.generation + 1,
    since = excluded.since, completed_until = excluded.completed_until, failed_until = excluded.failed_until,
    follows = excluded.follows, absorbed = 0, differing = 0, ended = null, ended_at = null, forget_at = null,
    fingerprint = null

-- take_key: the key now points to the new holder.
insert into onejob.key as k (
    digest, text, queue, task, holder, generation, since, completed_until, failed_until, follows
)
values (
    $1::bytea, $2::text, $3::text, $4::text, $5::uuid, 1, $6::bigint, $7::bigint, $8::bigint, $9::uuid
)
/* upsert */;

-- take_keys: the same for several keys, each given once.
insert into onejob.key as k (
    digest, text, queue, task, holder, generation, since, completed_until, failed_until, follows
)
select g.digest, g.text, g.queue, g.task, g.holder, 1, g.since, g.completed_until, g.failed_until, g.follows
from unnest(
    $1::bytea[], $2::text[], $3::text[], $4::text[], $5::uuid[], $6::bigint[], $7::bigint[], $8::bigint[], $9::uuid[]
) as g (digest, text, queue, task, holder, since, completed_until, failed_until, follows)
order by g.digest
/* upsert */;

-- change_holders: new contents and due times, at $1, for queued holders, whose ids $2 are sorted: $3 whether the payload
-- is appended, $4 payload, $5 fingerprint (null: as it is), $6 items, $7 size, $8 due time, $9 calls. One that waits for
-- another goes on waiting.
update onejob.job j
set payload = case
        when ($3::boolean[])[width_bucket(j.id, $2::uuid[])]
            then j.payload || '\x0a'::bytea || ($4::bytea[])[width_bucket(j.id, $2::uuid[])]
        else ($4::bytea[])[width_bucket(j.id, $2::uuid[])]
    end,
    fingerprint = coalesce(($5::bytea[])[width_bucket(j.id, $2::uuid[])], j.fingerprint),
    items = ($6::integer[])[width_bucket(j.id, $2::uuid[])],
    size = ($7::integer[])[width_bucket(j.id, $2::uuid[])],
    due = ($8::bigint[])[width_bucket(j.id, $2::uuid[])],
    state = case
        when j.state = 'blocked' then j.state
        when ($8::bigint[])[width_bucket(j.id, $2::uuid[])] > $1::bigint then 'delayed'
        when j.lane is not null then 'parked'
        else 'waiting'
    end,
    place = case
        when j.place is null or j.place = 3 then j.place
        when j.state != 'blocked' and ($8::bigint[])[width_bucket(j.id, $2::uuid[])] <= $1::bigint then 1
        else 0
    end,
    updated = $1::bigint,
    calls = ($9::bytea[])[width_bucket(j.id, $2::uuid[])]
where j.id = any($2::uuid[]) and j.state in ('blocked', 'delayed', 'parked', 'waiting')
returning j.id, j.queue, j.lane;

-- change_as_seen: the same for one holder without a lane, if it is still of the version $10 and nobody has it locked.
update onejob.job j
set payload = case when $3::boolean then j.payload || '\x0a'::bytea || $4::bytea else $4::bytea end,
    fingerprint = coalesce($5::bytea, j.fingerprint),
    items = $6::integer,
    size = $7::integer,
    due = $8::bigint,
    state = case when j.state = 'blocked' then j.state when $8::bigint > $1::bigint then 'delayed' else 'waiting' end,
    updated = $1::bigint,
    calls = $9::bytea
where j.id = (
    select f.id
    from onejob.job f
    where f.id = $2::uuid and f.state in ('blocked', 'delayed', 'parked', 'waiting') and f.xmin::text = $10::text
    for update skip locked
)
returning j.id, j.queue, j.lane;

-- hurry_holders: delayed holders that are full become due at once, at $1.
update onejob.job j
set due = $1::bigint,
    state = case when j.state = 'blocked' then j.state when j.lane is not null then 'parked' else 'waiting' end,
    place = case when j.place = 0 and j.state != 'blocked' then 1 else j.place end
where j.id = any($2::uuid[]) and j.state in ('blocked', 'delayed') and j.due > $1::bigint
returning j.id, j.queue, j.lane;

-- last_of_chain: the last job of a chain, by the id of its first.
select coalesce(
    (select j.id from onejob.job j where j.chain = $1::uuid order by j.chain_index desc limit 1),
    (select j.id from onejob.job j where j.id = $1::uuid)
);

-- count_absorbed: duplicates counted in memory since the last flush ($3 all, $4 with other arguments), where nobody
-- has the key locked, and its holder is the one given. Returns which keys were counted. Where a row lies, once it is locked,
-- is the quickest way to it.
with given as materialized (
    select g.digest, g.holder, g.absorbed, g.differing
    from unnest($1::bytea[], $2::uuid[], $3::bigint[], $4::bigint[]) as g (digest, holder, absorbed, differing)
    order by g.digest
), free as materialized (
    select f.place, g.absorbed, g.differing
    from given g
    cross join lateral (
        select k.ctid as place
        from onejob.key k
        where k.digest = g.digest and k.holder = g.holder
        for update skip locked
        offset 0
    ) f
)
update onejob.key k
set absorbed = k.absorbed + f.absorbed, differing = k.differing + f.differing
from free f
where k.ctid = f.place
returning k.digest;
