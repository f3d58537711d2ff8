-- prune: remove what has been kept long enough; memory of a window outlives its job.

-- old_chains: the last jobs of chains that ended so, past the retention of that; but not if they are yet to be read.
select j.id, j.digest, j.fingerprint, j.blockers, j.chain
from onejob_job j
where j.state = :state and j.ended is not null and j.ended <= :before
    and not exists (
        select 1 from onejob_job t where t.chain = coalesce(j.chain, j.id) and t.chain_index > j.chain_index
    )
    and not exists (
        select 1
        from onejob_blocker b
        join onejob_job w on w.id = b.job
        where b.chain = coalesce(j.chain, j.id) and w.ended is null
    )
order by j.ended
limit :limit;

-- before_last: the other jobs of chains.
select j.id, j.digest, j.fingerprint, j.blockers, j.chain from onejob_job j where j.id in carray(:chains)
union all
select j.id, j.digest, j.fingerprint, j.blockers, j.chain
from onejob_job j
where j.chain in carray(:chains)
    and exists (select 1 from onejob_job t where t.chain = j.chain and t.chain_index > j.chain_index);

-- keep_memory: the key of a job about to go keeps what later arrivals are compared with.
update onejob_key set fingerprint = :fingerprint where digest = :digest and holder = :id;

-- drop_job: one ended job.
delete from onejob_job where id = ? and ended is not null;

-- drop_keys: keys whose memory has run out.
delete from onejob_key
where digest in (
    select digest from onejob_key
    where forget_at <= :now and forget_at is not null and follows is null
    limit :limit
);

-- drop_workers: workers long dead that hold no job.
delete from onejob_worker
where alive_until <= :before
    and not exists (select 1 from onejob_job j where j.state = 'running' and j.worker = onejob_worker.id);
