-- enqueue: accept newcomers; key and job are written together or not at all.

-- find_holders: records of different keys joined with the jobs that hold them; no job columns if one is gone. A chain that
-- has gone on beyond its first job, which has ended then, runs until its last job has ended, and then stands as that one does.
select
    k.holder,
    iif(
        j.id is not null and j.ended is null,
        j.state,
        coalesce(
            (
                select iif(t.ended is null, 'running', t.state) from onejob_job t
                where t.chain = k.holder
                order by t.chain_index desc
                limit 1
            ),
            j.state,
            k.ended
        )
    ), k.since, k.completed_until, k.failed_until,
    coalesce(j.accepted, k.since), coalesce(j.due, k.since), coalesce(j.attempt, 1), coalesce(j.priority, 0),
    j.options, j.expires, k.follows, coalesce(j.fingerprint, k.fingerprint), coalesce(j.items, 0),
    coalesce(j.size, length(j.payload), 0), j.calls, j.id is null, k.digest, j.lane
from carray(:digests)
cross join onejob_key k on k.digest = value -- one by one: a list would be sorted first
left join onejob_job j on j.id = k.holder;

-- known_jobs: which of these ids have been accepted before; the ids of a batch are neighbours.
select id from onejob_job where id between :lowest and :highest limit :most;

-- find_job: one row if a job of that id was ever accepted and is still stored.
select 1 from onejob_job where id = :id;

-- plain_columns: what is written of a job without key, lane and blockers.
id, payload, queue, task, state, priority, due, accepted, updated, since, expires, options, max_crashes

-- insert_plain_job: a new job without key, lane and blockers; an id that is already there is left alone.
insert into onejob_job (/* plain_columns */)
values (?10, ?11, ?1, ?2, ?3, ?4, ?5, ?6, ?6, ?6, ?7, ?8, ?9)
on conflict (id) do nothing;

-- insert_plain_at_once: the same, from the beginning of a transaction to its end.
begin immediate;
/* insert_plain_job */
commit;

-- insert_plain_alike: several of them that are alike; each value is an id and a payload.
insert into onejob_job (/* plain_columns */)
select substr(value, 1, 16), substr(value, 17), ?1, ?2, ?3, ?4, ?5, ?6, ?6, ?6, ?7, ?8, ?9
from carray(?10)
where true
on conflict (id) do nothing;

-- insert_job: a new job without a key; an id that is already there is left alone.
insert into onejob_job (
    id, queue, task, state, priority, due, accepted, updated, since, expires, payload, options, max_crashes, lane,
    lane_plan, blockers, place
)
values (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?7, ?7, ?8, ?9, ?10, ?11, ?12, ?13, ?14, iif(?12 is null, null, ?4 = 'parked'))
on conflict (id) do nothing;

-- keyed_columns: what is written of a job that takes a key.
id, queue, task, state, priority, due, accepted, updated, since, expires, payload, options, max_crashes,
    items, follows, digest, key, plan, fingerprint, calls, size, lane, lane_plan, blockers, place

-- keyed_values: of one such job, in that order.
?1, ?2, ?3, ?4, ?5, ?6, ?7, ?7, ?8, ?9, ?10, ?11, ?12, ?13, ?14, ?15, ?16, ?17, ?18, ?19, ?20, ?21,
    ?22, ?23, iif(?21 is null, null, ?4 = 'parked')

-- insert_keyed_job: a new job that takes a key.
insert into onejob_job (/* keyed_columns */)
values (/* keyed_values */);

-- key_in_value: where the key ends, as people read it, in a value made of id, digest, fingerprint, key, NUL and payload.
40 + instr(substr(value, 41), x'00')

-- insert_keyed_alike: several new jobs with keys of their own that are alike; each value is as `key_in_value` says.
insert into onejob_job (
    id, payload, digest, fingerprint, key, queue, task, state, priority, due, accepted, updated, since, expires,
    options, max_crashes, items, plan
)
select
    substr(value, 1, 16), substr(value, 1 + /* key_in_value */), substr(value, 17, 16), substr(value, 33, 8),
    cast(substr(value, 41, /* key_in_value */ - 41) as text), ?1, ?2, ?3, ?4, ?5, ?6, ?6, ?7, ?8, ?9, ?10, ?11, ?12
from carray(?13);

-- key_columns: what is written of a key that is taken.
digest, text, queue, task, holder, generation, since, completed_until, failed_until, follows

-- over_former: what is written over whatever the key pointed to before.
text = excluded.text, task = excluded.task, holder = excluded.holder, generation = generation + 1,
    since = excluded.since, completed_until = excluded.completed_until, failed_until = excluded.failed_until,
    follows = excluded.follows, absorbed = 0, differing = 0, ended = null, ended_at = null, forget_at = null, fingerprint = null

-- key_values: of one such key, in that order.
?, ?, ?, ?, ?, 1, ?, ?, ?, ?

-- take_key: the key now points to the new holder, whatever it pointed to before.
insert into onejob_key (/* key_columns */)
values (/* key_values */)
on conflict (digest) do update set /* over_former */;

-- insert_keyed_at_once: a new job that takes a vacant key, from the beginning of a transaction to its end; nothing, if the
-- key is not vacant.
begin immediate;
insert into onejob_key (/* key_columns */)
values (/* key_values */)
on conflict (digest) do nothing;
insert into onejob_job (/* keyed_columns */)
select /* keyed_values */ where changes() = 1;
commit;

-- take_keys: several vacant keys now point to new holders that are alike; each value is as `key_in_value` says.
insert into onejob_key (/* key_columns */)
select
    substr(value, 17, 16), cast(substr(value, 41, /* key_in_value */ - 41) as text), ?1, ?2, substr(value, 1, 16), 1,
    ?3, ?4, ?5, null
from carray(?6);

-- change_holder: new payload and due time for a queued holder; one that waits for another goes on waiting.
update onejob_job
set payload = case when :append then cast(payload || x'0a' || :payload as blob) else :payload end,
    fingerprint = case when :append then fingerprint else :fingerprint end,
    items = case when :append then items + :items else :items end,
    size = case when :append then coalesce(size, length(payload)) + 1 + :size else :size end,
    due = :due,
    state = case
        when state = 'blocked' then state
        when :due > :now then 'delayed'
        when lane is not null then 'parked'
        else 'waiting'
    end,
    place = iif(place is null or place = 3, place, state != 'blocked' and :due <= :now),
    updated = :now,
    calls = :calls
where id = :id and state in ('blocked', 'delayed', 'parked', 'waiting')
returning queue, lane;

-- hurry_holder: a delayed holder that is full becomes due at once.
update onejob_job
set due = :now,
    state = case when state = 'blocked' then state when lane is not null then 'parked' else 'waiting' end,
    place = iif(place = 0, state != 'blocked', place)
where id = :id and state in ('blocked', 'delayed') and due > :now
returning queue, lane;

-- follow_holder: a holder that was made again without its key must know at its end who waits behind it.
update onejob_job set digest = :digest where id = :id and digest is null;

-- count_absorbed: so many duplicates, and so many of them with other arguments, for each of several holders of keys; each
-- value is a holder and its key. A key that is another's by now is left alone.
update onejob_key
set absorbed = absorbed + ?1, differing = differing + ?2
where number in (
    select k.number from carray(?3)
    cross join onejob_key k on k.digest = substr(value, 17)
    where k.holder = substr(value, 1, 16)
);
