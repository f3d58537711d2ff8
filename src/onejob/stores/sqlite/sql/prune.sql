-- prune: remove what has been kept long enough; memory of a window outlives its job.

-- old_jobs: ended jobs of one outcome past their retention.
select id, digest, fingerprint from onejob_job
where state = :state and ended is not null and ended <= :before
order by ended
limit :limit;

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
