-- amend: what an operator asks of a job, whatever its state.

-- look: what the key of a chain's first job needs.
select queue, digest, plan, since, key, task from onejob_job where id = :id;

-- chain: the jobs of the chain that a job belongs to, the last one first.
select id, coalesce(chain, id), state, digest, fingerprint, blockers
from onejob_job
where id = coalesce((select chain from onejob_job where id = :id), :id)
    or chain = coalesce((select chain from onejob_job where id = :id), :id)
order by chain_index desc;

-- revoke: a queued job ends at once.
update onejob_job
set state = 'revoked', ended = :now, updated = :now, error = coalesce(error, :reason), place = null
where id = :id and state in ('blocked', 'delayed', 'parked', 'waiting')
returning id, queue, digest, state, follows, lane, chain;

-- flag: a running job is asked to stop, and will end revoked.
update onejob_job set aborting = 1, updated = :now where id = :id and state = 'running' returning queue;

-- revive: an ended job runs again under its old id, with a fresh budget and its old window.
update onejob_job
set state = case when :follows is not null or :blocked then 'blocked' when lane is not null then 'parked' else 'waiting' end,
    place = iif(lane is null, null, :follows is null and not :blocked),
    follows = :follows, due = :now, updated = :now, ended = null, started = null, expires = null, failures = 0,
    crashes = 0, misses = 0, aborting = 0, result = null
where id = :id and state in ('failed', 'revoked')
returning queue, lane, lane_plan;

-- give_up_key: a chain that runs again without its key.
update onejob_job set digest = null, key = null, plan = null where id = :id;
