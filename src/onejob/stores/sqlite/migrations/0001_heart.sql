-- The heart: jobs, the keys they hold, the lanes they share and the workers that run them. Instants are milliseconds.

create table onejob_job (
    seq integer primary key,           -- order of acceptance
    id blob not null unique,           -- UUIDv7, 16 bytes
    queue text not null,
    task text not null,
    state text not null,
    priority integer not null,
    due integer not null,
    accepted integer not null,
    updated integer not null,
    since integer not null,            -- where its window starts
    attempt integer not null default 0,
    failures integer not null default 0,
    crashes integer not null default 0,
    misses integer not null default 0,
    aborting integer not null default 0,
    max_crashes integer not null,
    started integer,
    ended integer,
    expires integer,
    worker text,
    lease blob,
    payload blob not null,
    options blob,
    items integer not null default 0,
    follows blob,                      -- the chain that must end first
    digest blob,                       -- the key it took, if any
    key text,
    plan blob,
    fingerprint blob,
    calls blob,                        -- the last calls applied to it
    progress blob,
    result blob,
    error text,
    size integer,                      -- of the payload before compression; null: as it is
    origin blob,                       -- of a dead letter: the job that failed, and its queue
    origin_queue text,
    lane text,                         -- the key of its lane
    lane_plan blob,                    -- the limits that it brought; null: one at a time
    place integer,                     -- in its lane: 0 not ready, 1 ready, 2 has a slot, 3 keeps it until it has ended
    chain blob,                        -- of a continuation: the id of its chain's first job
    chain_index integer not null default 0,
    blockers integer not null default 0 -- how many chains it was told to wait for
) strict;

create index onejob_job_waiting on onejob_job (queue, priority desc, due, seq) where state = 'waiting';
create index onejob_job_delayed on onejob_job (queue, due) where state = 'delayed' and lane is null;
create index onejob_job_delayed_in_lane on onejob_job (queue, due) where state = 'delayed' and lane is not null;
create index onejob_job_running on onejob_job (worker, queue) where state = 'running';
create index onejob_job_ended on onejob_job (state, ended) where ended is not null;
create index onejob_job_expires on onejob_job (expires) where expires is not null and ended is null;
create index onejob_job_follows on onejob_job (follows) where follows is not null;
create index onejob_job_dead on onejob_job (origin_queue, seq) where origin_queue is not null;

-- A lane's live jobs: who has a slot, and whose turn is next, by acceptance or else by priority. A start changes
-- nothing in them: a slot is a job's from when it is its turn.
create index onejob_job_lane on onejob_job (queue, lane, place desc, seq) where place is not null;
create index onejob_job_lane_priority on onejob_job (queue, lane, priority desc, due, seq) where place = 1;
create index onejob_job_turn on onejob_job (queue, lane, place) where lane is not null and state = 'waiting';

create unique index onejob_job_chain on onejob_job (chain, chain_index) where chain is not null;

-- Digests come in no order: beside their own narrow index, the rows can stay in order of arrival.
create table onejob_key (
    number integer primary key,
    digest blob not null unique,
    text text not null,
    queue text not null,
    task text not null,
    holder blob not null,
    generation integer not null,
    since integer not null,
    completed_until integer,           -- remembered until then if the holder completed; null: not at all
    failed_until integer,
    follows blob,                      -- whom its holder waits for, or would have waited for
    absorbed integer not null default 0,
    differing integer not null default 0,
    ended text,                        -- how and when the holder ended, once it has
    ended_at integer,
    forget_at integer,
    fingerprint blob                   -- the holder's, kept when its job is pruned
) strict;

create index onejob_key_forget on onejob_key (forget_at) where forget_at is not null;

create table onejob_worker (
    id text primary key,
    queues text not null,
    host text not null,
    pid integer not null,
    concurrency integer not null,
    started integer not null,
    seen integer not null,
    alive_until integer not null
) strict, without rowid;

-- The chains that a job waits or waited for, in order.
create table onejob_blocker (
    job blob not null,
    place integer not null,
    chain blob not null,
    needed integer not null,           -- 1: the job fails if the chain does not complete
    live integer not null,             -- 1 until the chain has ended
    primary key (job, place)
) strict, without rowid;

create index onejob_blocker_chain on onejob_blocker (chain, live);
create index onejob_blocker_live on onejob_blocker (job) where live = 1;

-- A lane's limits, as its newest job brought them; who takes its slots is written in the jobs.
create table onejob_lane (
    queue text not null,
    key text not null,
    concurrency integer not null,
    rate_max integer,
    rate_per integer,
    hold integer not null,
    opens_at integer,                  -- when its rate lets somebody who waits for it start
    primary key (queue, key)
) strict, without rowid;

create index onejob_lane_rated on onejob_lane (queue) where rate_max is not null;
create index onejob_lane_opens on onejob_lane (queue, opens_at) where opens_at is not null;
create index onejob_lane_closed on onejob_lane (queue, opens_at - rate_per) where opens_at is not null;

create table onejob_queue (
    name text primary key,
    concurrency integer,
    rate_max integer,
    rate_per integer,
    paused integer not null
) strict, without rowid;

create table onejob_schedule (
    id text primary key,
    definition blob not null,
    declared integer not null,
    paused integer not null,
    since integer not null,
    next integer not null,             -- the slot that is due next
    last integer,                      -- the last slot that became a job, and what that was
    job blob,
    outcome text,
    fired integer not null,
    updated integer not null,
    revision integer not null
) strict, without rowid;

create index onejob_schedule_next on onejob_schedule (next) where paused = 0;

-- Starts that a rate still counts; those of a queue's own rate have the lane ''.
create table onejob_start (
    queue text not null,
    lane text not null,
    at integer not null,
    job blob not null,
    lease blob not null,               -- each start has its own; an attempt that was handed back counts again
    primary key (queue, lane, at, job, lease)
) strict, without rowid;
