-- set_queue: limits of a whole queue.

-- wait: let every claim under way end first, and none begin: those that come later see what is set. Who only reads
-- does not wait.
lock table onejob.queue in exclusive mode;

-- limits: what is set of one queue.
select q.concurrency, q.rate_max, q.rate_per, q.paused from onejob.queue q where q.name = $1::text;

-- put: what is set from now on.
insert into onejob.queue (name, concurrency, rate_max, rate_per, paused)
values ($1::text, $2::integer, $3::integer, $4::bigint, $5::boolean)
on conflict (name) do update set
    concurrency = excluded.concurrency, rate_max = excluded.rate_max, rate_per = excluded.rate_per,
    paused = excluded.paused;

-- drop: a queue without limits needs no row.
delete from onejob.queue where name = $1::text;

-- all: every queue that has limits or is paused.
select q.name, q.concurrency, q.rate_max, q.rate_per, q.paused from onejob.queue q order by q.name;

-- narrow: which of these queues let only so many jobs run at once.
select q.name from onejob.queue q where q.name = any($1::text[]) and q.concurrency is not null;
