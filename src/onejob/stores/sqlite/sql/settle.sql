-- settle: end attempts, guarded by id, state and lease; a refused one changes nothing.

-- look: the running jobs among those to be settled, and what guards them.
select seq, id, lease, aborting, digest, queue, worker, lane, chain, chain_index
from onejob_job
where id in carray(:ids) and state = 'running';

-- alive: the workers that have not stopped beating.
select id from onejob_worker where alive_until > :now;

-- changes: what an attempt's end writes. Only completion wipes out the last error.
state = ?1, ended = ?2, due = coalesce(?3, due), attempt = attempt + ?4, failures = failures + ?5,
    crashes = crashes + ?6, misses = misses + ?7, result = ?8,
    error = iif(?1 = 'completed', null, coalesce(?9, error)), place = ?10

-- settle: one attempt's end.
update onejob_job set /* changes */ where seq = ?11 and state = 'running' and lease = ?12;

-- settle_alike: the same end of several attempts, under one lease.
update onejob_job set /* changes */ where seq in carray(?11) and state = 'running' and lease = ?12;

-- as_claimed: attempts under one lease that nobody asked to stop, and whose jobs still have a key or none, as ?4 says.
state = 'running' and lease = ?3 and aborting = 0 and (digest is null) = ?4

-- completion: what their end writes. In place of their lease, each has the mark of this end.
state = 'completed', ended = ?1, error = null, lease = ?2

-- complete: attempts without result and lane. "or fail" is for the reason that `lanes.release_next` gives.
update or fail onejob_job set /* completion */, result = null where seq in carray(?5) and /* as_claimed */;

-- complete_in_lanes: attempts without result.
update or fail onejob_job set /* completion */, result = null, place = null where seq in carray(?5) and /* as_claimed */;

-- complete_with_results: attempts without lane; each value is an id and a result.
update or fail onejob_job set /* completion */, result = substr(value, 17)
from carray(?5)
where id = substr(value, 1, 16) and /* as_claimed */;

-- complete_with_results_in_lanes: attempts with both.
update or fail onejob_job set /* completion */, result = substr(value, 17), place = null
from carray(?5)
where id = substr(value, 1, 16) and /* as_claimed */;

-- marked: which of some jobs have ended so.
select seq from onejob_job where seq in carray(?1) and lease = ?2;

-- roots: the first jobs of chains.
select id, digest, queue from onejob_job where id in carray(:chains);

-- continue: the next job of a chain, unless there is one.
insert into onejob_job (
    id, queue, task, state, priority, due, accepted, updated, since, expires, payload, options, max_crashes, lane,
    lane_plan, blockers, chain, chain_index, place
)
values (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?7, ?7, ?8, ?9, ?10, ?11, ?12, ?13, ?14, ?15, ?16,
    iif(?12 is null, null, ?4 = 'parked'))
on conflict do nothing;

-- found_instead: the job that has the id of a chain's next one already.
select task, payload, chain from onejob_job where id = :id;

-- look_at_keys: the keys of jobs that have just ended.
select digest, holder, follows, completed_until, failed_until from onejob_key where digest in carray(:digests);

-- look_for_followers: which of the jobs that have just ended are waited for.
select distinct follows from onejob_job where follows in carray(:ids) and state = 'blocked';

-- forget_key: a key that nothing remembers.
delete from onejob_key where digest = ?;

-- end_key: a key that is remembered for a while.
update onejob_key set ended = ?, ended_at = ?, forget_at = ? where digest = ?;

-- has_blockers: what keeps a job blocked that follows nobody any more.
exists (select 1 from onejob_blocker b where b.job = onejob_job.id and b.live = 1)

-- release_followers: jobs that waited for this one wait for whom it was waiting for, or for nobody.
update onejob_job
set follows = :instead,
    state = case
        when :instead is not null then 'blocked'
        when /* has_blockers */ then 'blocked'
        when due > :now then 'delayed'
        when lane is not null then 'parked'
        else 'waiting'
    end,
    place = iif(place = 0, :instead is null and due <= :now and not /* has_blockers */, place)
where follows = :id and state = 'blocked'
returning queue, lane;

-- pass_on_follows: the same in the key, for whoever takes it next.
update onejob_key set follows = :instead where digest = :digest and follows = :id;

-- stop_following: an ended job waits for nobody.
update onejob_job set follows = null where id = :id;
