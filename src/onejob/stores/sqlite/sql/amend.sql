-- amend: what an operator asks of a job, whatever its state.

-- look: the job's state and what its key needs.
select state, queue, digest, plan, since, key, task, fingerprint from onejob_job where id = :id;

-- revoke: a queued job ends at once.
update onejob_job
set state = 'revoked', ended = :now, updated = :now, error = coalesce(error, :reason), place = null
where id = :id and state in ('blocked', 'delayed', 'parked', 'waiting')
returning id, queue, digest, state, follows, lane;

-- flag: a running job is asked to stop, and will end revoked.
update onejob_job set aborting = 1, updated = :now where id = :id and state = 'running' returning queue;

-- revive: an ended job runs again under its old id, with a fresh budget and its old window.
update onejob_job
set state = case when :follows is not null then 'blocked' when lane is not null then 'parked' else 'waiting' end,
    place = iif(lane is null, null, :follows is null),
    follows = :follows, due = :now, updated = :now, ended = null, started = null, expires = null, failures = 0,
    crashes = 0, misses = 0, aborting = 0, result = null,
    digest = iif(:with_key, digest, null), key = iif(:with_key, key, null), plan = iif(:with_key, plan, null)
where id = :id and state in ('failed', 'revoked')
returning queue, lane, lane_plan;
