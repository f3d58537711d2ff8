-- The heart: jobs, the keys they hold, the lanes they share and the workers that run them. Instants are milliseconds.
-- Names are compared and sorted byte by byte, so that no upgrade of the system's collations can spoil an index.

create table onejob.job (
    seq bigint generated always as identity primary key, -- order of acceptance
    id uuid not null unique,           -- UUIDv7
    queue text collate "C" not null,
    task text not null,
    state text collate "C" not null,
    priority integer not null,
    due bigint not null,
    accepted bigint not null,
    updated bigint not null,
    since bigint not null,             -- where its window starts
    attempt integer not null default 0,
    failures integer not null default 0,
    crashes integer not null default 0,
    misses integer not null default 0,
    aborting boolean not null default false, -- an operator asked it to stop; others who ask leave a row in flag
    awaited boolean not null default false, -- others may wait for its chain to end: it is for whoever ends it to look
    max_crashes integer not null,
    started bigint,
    ended bigint,
    expires bigint,
    worker text collate "C",
    lease bytea,
    payload bytea not null,
    options bytea,
    items integer not null default 0,
    follows uuid,                      -- the chain that must end first, or was to when it ended without a start
    digest bytea,                      -- the key it took, if any
    key text,
    plan bytea,
    fingerprint bytea,
    calls bytea,                       -- the last calls applied to it
    progress bytea,
    result bytea,
    error text,
    size integer,                      -- of the payload before compression; null: as it is
    origin uuid,                       -- of a dead letter: the job that failed, and its queue
    origin_queue text collate "C",
    lane text collate "C",             -- the key of its lane
    lane_plan bytea,                   -- the limits that it brought; null: one at a time
    place smallint,                    -- in its lane: 0 not ready, 1 ready, 2 has a slot, 3 keeps it until it has ended
    chain uuid,                        -- of a continuation: the id of its chain's first job
    chain_index integer not null default 0,
    blockers integer not null default 0 -- how many chains it was told to wait for
) with (fillfactor = 85, autovacuum_vacuum_scale_factor = 0.02, autovacuum_vacuum_insert_scale_factor = 0.05,
    autovacuum_analyze_scale_factor = 0.05, toast_tuple_target = 4096);

create index job_waiting on onejob.job (queue, priority desc, due, seq) where state = 'waiting';
create index job_delayed on onejob.job (queue, due) where state = 'delayed' and lane is null;
create index job_delayed_in_lane on onejob.job (queue, due) where state = 'delayed' and lane is not null;
create index job_running on onejob.job (worker, queue) where state = 'running';
create index job_ended on onejob.job (state, ended) include (queue) where ended is not null;
create index job_held on onejob.job (queue, state) where state in ('blocked', 'parked');
create index job_expires on onejob.job (expires)
    where expires is not null and state in ('blocked', 'delayed', 'parked', 'waiting');
create index job_follows on onejob.job (follows) where follows is not null;
create index job_dead on onejob.job (origin_queue, seq) where origin_queue is not null;

-- A lane's live jobs: who has a slot, and whose turn is next, by acceptance or else by priority.
create index job_lane on onejob.job (queue, lane, place desc, seq) where place is not null;
create index job_lane_priority on onejob.job (queue, lane, priority desc, due, seq) where place = 1;

create unique index job_chain on onejob.job (chain, chain_index) where chain is not null;

create table onejob.key (
    digest bytea primary key,
    text text not null,
    queue text collate "C" not null,
    task text not null,
    holder uuid not null,
    generation bigint not null,
    since bigint not null,
    completed_until bigint,            -- remembered until then if the holder completed; null: not at all
    failed_until bigint,
    follows uuid,                      -- whom its holder waits for, or would have waited for
    absorbed bigint not null default 0,
    differing bigint not null default 0,
    ended text,                        -- how and when the holder ended, once it has
    ended_at bigint,
    forget_at bigint,
    fingerprint bytea                  -- the holder's, kept when its job is pruned
) with (fillfactor = 85, autovacuum_vacuum_scale_factor = 0.02, autovacuum_analyze_scale_factor = 0.05);

create index key_forget on onejob.key (forget_at) where forget_at is not null;

create table onejob.worker (
    id text collate "C" primary key,
    queues text not null,
    host text not null,
    pid integer not null,
    concurrency integer not null,
    started bigint not null,
    seen bigint not null,
    alive_until bigint not null
) with (fillfactor = 50);

-- Chains whose last job runs and is asked to stop. Not in that one's own row: who asks may be in a long transaction, and
-- settling never waits for one. By chain, because it may go on before the question is committed.
create table onejob.flag (
    chain uuid primary key,
    at bigint not null
);

-- The chains that a job waits or waited for, in order.
create table onejob.blocker (
    job uuid not null,
    place integer not null,
    chain uuid not null,
    needed boolean not null,           -- the job fails if the chain does not complete
    live boolean not null,             -- until the chain has ended
    primary key (job, place)
);

create index blocker_chain on onejob.blocker (chain, job);
create index blocker_live on onejob.blocker (job) where live;

-- Chains that somebody began to wait for, or that ended while somebody could not be let go: any claim looks again.
create table onejob.recheck (
    number bigint generated always as identity primary key,
    chain uuid not null
) with (autovacuum_vacuum_scale_factor = 0, autovacuum_vacuum_threshold = 500);

-- A lane's limits, as its newest job brought them; who takes its slots is written in the jobs. Only claims lock it.
create table onejob.lane (
    queue text collate "C" not null,
    key text collate "C" not null,
    concurrency integer not null,
    rate_max integer,
    rate_per bigint,
    hold boolean not null,
    opens_at bigint,                   -- when its rate lets somebody who waits for it start
    primary key (queue, key)
);

create index lane_opens on onejob.lane (queue, opens_at) where opens_at is not null;
create index lane_closed on onejob.lane (queue, (opens_at - rate_per)) where opens_at is not null;
create index lane_rated on onejob.lane (queue) where rate_max is not null;

-- Lanes to which something happened since a claim last looked at them. Only ever added, so that nobody waits.
create table onejob.touch (
    queue text collate "C" not null,
    number bigint generated always as identity,
    lane text collate "C" not null,
    concurrency integer,               -- limits that a new job brought, to stand from now on; null: it brought none
    rate_max integer,
    rate_per bigint,
    hold boolean,
    primary key (queue, number)
) with (autovacuum_vacuum_scale_factor = 0, autovacuum_vacuum_threshold = 500);

create index touch_brought on onejob.touch (queue, lane, number) where concurrency is not null;

create table onejob.queue (
    name text collate "C" primary key,
    concurrency integer,
    rate_max integer,
    rate_per bigint,
    paused boolean not null
);

create table onejob.schedule (
    id text collate "C" primary key,
    definition bytea not null,
    declared boolean not null,
    paused boolean not null,
    since bigint not null,
    next bigint not null,              -- the slot that is due next
    last bigint,                       -- the last slot that became a job, and what that was
    job uuid,
    outcome text,
    fired bigint not null,
    updated bigint not null,
    revision bigint not null
) with (fillfactor = 50);

create index schedule_next on onejob.schedule (next) where not paused;

-- Starts that a rate still counts; those of a queue's own rate have the lane ''.
create table onejob.start (
    queue text collate "C" not null,
    lane text collate "C" not null,
    at bigint not null,
    job uuid not null,
    lease bytea not null,              -- each start has its own; an attempt that was handed back counts again
    primary key (queue, lane, at, job, lease)
);
