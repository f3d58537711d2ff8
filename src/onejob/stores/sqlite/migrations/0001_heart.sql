-- The heart: jobs, the keys they hold, and the workers that run them. Instants are milliseconds.

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
    origin_queue text
) strict;

create index onejob_job_waiting on onejob_job (queue, priority desc, due, seq) where state = 'waiting';
create index onejob_job_delayed on onejob_job (queue, due) where state = 'delayed';
create index onejob_job_running on onejob_job (worker) where state = 'running';
create index onejob_job_ended on onejob_job (state, ended) where ended is not null;
create index onejob_job_expires on onejob_job (expires) where expires is not null and ended is null;
create index onejob_job_follows on onejob_job (follows) where follows is not null;
create index onejob_job_dead on onejob_job (origin_queue, seq) where origin_queue is not null;

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
