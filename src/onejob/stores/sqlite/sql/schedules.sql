-- schedules: records are compared by their revision, and then set.

-- columns: of a record, in the order in which it is read.
id, definition, declared, paused, since, next, last, job, outcome, fired, updated, revision

-- insert: a schedule that was not there.
insert into onejob_schedule (/* columns */)
values (:id, :definition, :declared, :paused, :since, :next, :last, :job, :outcome, :fired, :updated, :revision)
on conflict (id) do nothing;

-- replace: one that is still as it was read.
update onejob_schedule
set definition = :definition, declared = :declared, paused = :paused, next = :next, last = :last, job = :job,
    outcome = :outcome, fired = :fired, updated = :updated, revision = :revision
where id = :id and revision = :revision - 1 and since = :since;

-- drop: its jobs stay as they are.
delete from onejob_schedule where id = :id;

-- due: those whose next slot has come, the most overdue first.
select /* columns */ from onejob_schedule
where paused = 0 and next <= :now
order by next
limit :limit;

-- next_at: when the next of the others is due.
select min(next) from onejob_schedule where paused = 0 and next > :now;

-- one: a record by its id.
select /* columns */ from onejob_schedule where id = :id;

-- all: every record, by id.
select /* columns */ from onejob_schedule order by id;
