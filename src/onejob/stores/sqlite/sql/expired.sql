-- expired: running jobs whose worker has stopped beating, or is not on record.
select
    j.id, cast(j.task as blob), j.payload, j.options, j.attempt, j.failures, j.crashes, j.max_crashes, j.misses,
    j.accepted, j.due, cast(j.key as blob), j.lease, j.queue, j.worker, cast(j.lane as blob),
    j.chain, j.chain_index, j.blockers
from onejob_job j
left join onejob_worker w on w.id = j.worker
where j.state = 'running' and (w.alive_until is null or w.alive_until <= :now)
order by j.started
limit :limit;
