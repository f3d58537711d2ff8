-- settle: end attempts, guarded by id, state and lease; a refused one changes nothing.

-- settle: one attempt's end. A flagged job ends revoked, whatever the move.
-- 1 id, 2 lease, 3 state, 4 ended, 5 due, 6 attempt, 7 failures, 8 crashes, 9 misses, 10 result, 11 error,
-- 12 orphaned, 13 now, 14 its place in the batch
update onejob_job
set state = iif(aborting, 'revoked', ?3),
    ended = iif(aborting, ?13, ?4),
    due = coalesce(?5, due),
    attempt = attempt + ?6,
    failures = failures + ?7,
    crashes = crashes + ?8,
    misses = misses + ?9,
    result = iif(aborting, null, ?10),
    error = iif(?3 = 'completed' and not aborting, null, coalesce(?11, error))
where id = ?1 and state = 'running' and lease = ?2
    and (?12 = 0 or not exists (
        select 1 from onejob_worker w where w.id = onejob_job.worker and w.alive_until > ?13
    ))
returning id, queue, digest, state, follows, ?14;

-- look_at_end: what the end of a job touches: is the key its own, does the key name it as followed, has it followers.
select k.holder = :id, k.follows = :id, exists (select 1 from onejob_job where follows = :id)
from (select :digest as digest) d
left join onejob_key k on k.digest = d.digest;

-- forget_key: the ended holder's key, if its policy forgets it at once and it waited for nobody.
delete from onejob_key
where digest = :digest and holder = :id and follows is null
    and coalesce(iif(:state = 'completed', completed_until, failed_until), 0) <= :now;

-- end_key: the ended holder's key, remembered for a while.
update onejob_key
set ended = :state, ended_at = :now,
    forget_at = coalesce(iif(:state = 'completed', completed_until, failed_until), :now)
where digest = :digest and holder = :id;

-- release_followers: jobs that waited for this one wait for whom it was waiting for, or for nobody.
update onejob_job
set follows = :instead, state = case when :instead is not null then 'blocked' when due > :now then 'delayed' else 'waiting' end
where follows = :id and state = 'blocked'
returning queue;

-- pass_on_follows: the same in the key, for whoever takes it next.
update onejob_key set follows = :instead where digest = :digest and follows = :id;

-- stop_following: an ended job waits for nobody.
update onejob_job set follows = null where id = :id;
