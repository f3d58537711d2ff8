-- schedules: records are compared by their revision, and then set.

-- columns: of a record, in the order in which it is read.
s.id, s.definition, s.declared, s.paused, s.since, s.next, s.last, s.job, s.outcome, s.fired, s.updated, s.revision

-- instant: one for the whole operation.
coalesce($1::bigint, (extract(epoch from clock_timestamp()) * 1000)::bigint)

-- insert: a schedule that was not there.
insert into onejob.schedule (
    id, definition, declared, paused, since, next, last, job, outcome, fired, updated, revision
)
values (
    $1::text, $2::bytea, $3::boolean, $4::boolean, $5::bigint, $6::bigint, $7::bigint, $8::uuid, $9::text, $10::bigint,
    $11::bigint, $12::bigint
)
on conflict (id) do nothing
returning id;

-- replace: one that is still as it was read.
update onejob.schedule
set definition = $2::bytea, declared = $3::boolean, paused = $4::boolean, next = $6::bigint, last = $7::bigint,
    job = $8::uuid, outcome = $9::text, fired = $10::bigint, updated = $11::bigint, revision = $12::bigint
where id = $1::text and revision = $12::bigint - 1 and since = $5::bigint
returning id;

-- drop: its jobs stay as they are.
delete from onejob.schedule where id = $1::text returning id;

-- due: when the next of the others is due, and those whose next slot has come, the most overdue first.
select
    (select min(o.next) from onejob.schedule o where not o.paused and o.next > c.now),
    /* columns */
from (
    select /* instant */ as now
) c
left join lateral (
    select * from onejob.schedule d where not d.paused and d.next <= c.now order by d.next limit $2::bigint
) s on true
order by s.next;

-- lock: the clock, and the records to be fired, which nobody else changes now.
select /* instant */, /* columns */
from onejob.schedule s
where s.id = any($2::text[])
order by s.id
for update;

-- some: records by their ids.
select /* columns */ from onejob.schedule s where s.id = any($1::text[]) order by s.id collate "C";

-- all: every record, by id.
select /* columns */ from onejob.schedule s order by s.id collate "C";
