-- blockers: chains that a job waits for. Each is a row that says whether its chain still lives.

-- chains: the chains that some jobs belong to.
select id, coalesce(chain, id) from onejob_job where id in carray(:ids);

-- standing: how chains stand, each by its last job; no row for one that is gone.
select
    r.value,
    coalesce(t.state, j.state),
    iif(t.id is null, j.error, t.error)
from carray(:chains) r
left join onejob_job j on j.id = r.value
left join onejob_job t on t.chain = r.value and t.chain_index = (
    select max(l.chain_index) from onejob_job l where l.chain = r.value
)
where j.id is not null or t.id is not null;

-- put: one chain that a job waits for.
insert into onejob_blocker (job, place, chain, needed, live) values (?, ?, ?, ?, ?);

-- of: the chains that a job waits or waited for.
select place, chain, needed from onejob_blocker where job = :job order by place;

-- renew: whether the chain that a job waits for at a place lives.
update onejob_blocker set live = ? where job = ? and place = ?;

-- any: one row if anybody waits for any chain; every id is more than nothing.
select 1 from onejob_blocker where live = 1 and job > x'' limit 1;

-- let_go: chains that have ended hold up nobody any more; whom they did, and whether it needed them.
update onejob_blocker set live = 0 where chain in carray(:chains) and live = 1 returning job, chain, needed;

-- release: jobs whose last blocker has ended.
update onejob_job
set state = case when due > :now then 'delayed' when lane is not null then 'parked' else 'waiting' end,
    place = iif(place = 0, due <= :now, place)
where id in carray(:jobs) and state = 'blocked' and follows is null
    and not exists (select 1 from onejob_blocker b where b.job = onejob_job.id and b.live = 1)
returning queue, lane;

-- strand: a job fails because a chain that it needed did not complete.
update onejob_job
set state = 'failed', ended = :now, updated = :now, error = :reason, place = null
where id = :id and state = 'blocked'
returning id, queue, digest, state, follows, lane, chain, options;

-- awaited: somebody waits for a chain, or has yet to read what it returned.
select 1
from onejob_blocker b
join onejob_job j on j.id = b.job
where b.chain = :chain and j.ended is null
limit 1;

-- drop: what a job that is deleted waited for.
delete from onejob_blocker where job = ?;

-- waits_of_first: whom the first jobs of chains wait for.
select j.id, b.chain
from onejob_job j
join onejob_blocker b on b.job = j.id and b.live = 1
where j.id in carray(:chains) and j.state = 'blocked'
union all
select id, follows from onejob_job where id in carray(:chains) and state = 'blocked' and follows is not null;

-- waits_of_next: whom their continuations wait for.
select j.chain, b.chain
from onejob_job j
join onejob_blocker b on b.job = j.id and b.live = 1
where j.chain in carray(:chains) and j.state = 'blocked'
union all
select chain, follows from onejob_job where chain in carray(:chains) and state = 'blocked' and follows is not null;
