-- beat: prolong a worker's leases, and read what it still holds.

-- beat: the worker is alive for a while longer.
insert into onejob_worker (id, queues, host, pid, concurrency, started, seen, alive_until)
values (:worker, :queues, :host, :pid, :concurrency, :now, :now, :now + :lease)
on conflict (id) do update set
    queues = excluded.queues, host = excluded.host, pid = excluded.pid, concurrency = excluded.concurrency,
    seen = excluded.seen, alive_until = excluded.alive_until;

-- progress: what a handler last said of its progress.
update onejob_job set progress = :progress, updated = :now
where id = :id and state = 'running' and worker = :worker;

-- held: the leases this worker holds, and which of its jobs are asked to stop.
select id, lease, aborting from onejob_job where state = 'running' and worker = :worker;

-- leave: a worker that stopped in good order.
delete from onejob_worker where id = :worker;
