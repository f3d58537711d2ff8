-- set_queue: limits of a whole queue.

-- limits: what is set of one queue.
select concurrency, rate_max, rate_per, paused from onejob_queue where name = :queue;

-- put: what is set from now on.
insert into onejob_queue (name, concurrency, rate_max, rate_per, paused)
values (:queue, :concurrency, :rate_max, :rate_per, :paused)
on conflict (name) do update set
    concurrency = excluded.concurrency, rate_max = excluded.rate_max, rate_per = excluded.rate_per,
    paused = excluded.paused;

-- drop: a queue without limits needs no row.
delete from onejob_queue where name = :queue;

-- all: every queue that has limits or is paused.
select name, concurrency, rate_max, rate_per, paused from onejob_queue order by name;

-- running: how many jobs of a queue run.
select count(*) from onejob_job where state = 'running' and queue = :queue;

-- narrow: which of these queues let only so many jobs run at once.
select name from onejob_queue where name in carray(:queues) and concurrency is not null;
