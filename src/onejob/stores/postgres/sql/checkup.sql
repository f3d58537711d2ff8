-- checkup: what a sound store does not have. Only catalogues and statistics are read, but for `stranded`.

-- server: what decides whether the server can keep what it acknowledges, and whether we may write at all.
select
    current_setting('server_version_num')::integer, current_setting('server_encoding'), current_setting('fsync'),
    current_setting('full_page_writes'), current_setting('synchronous_commit'), pg_is_in_recovery(),
    current_setting('default_transaction_read_only'), current_user::text;

-- rights: whether the schema is there and may be used; our tables in it, and what this user lacks on them.
select
    has_schema_privilege(n.oid, 'usage'),
    coalesce(
        (
            select array_agg(c.relname::text order by c.relname)
            from pg_catalog.pg_class c
            where c.relnamespace = n.oid and c.relkind in ('r', 'p') and c.relname = any($2::text[])
        ),
        '{}'
    ),
    coalesce(
        (
            select array_agg(c.relname::text order by c.relname)
            from pg_catalog.pg_class c
            where c.relnamespace = n.oid and c.relkind in ('r', 'p') and c.relname = any($2::text[])
                and not (
                    has_table_privilege(c.oid, 'select') and has_table_privilege(c.oid, 'insert')
                    and has_table_privilege(c.oid, 'update') and has_table_privilege(c.oid, 'delete')
                )
        ),
        '{}'
    )
from pg_catalog.pg_namespace n
where n.nspname = $1::text;

-- locked: sessions that have had a table of ours to themselves for so many seconds, so that nobody can even read it.
select a.pid, a.application_name, a.state, extract(epoch from clock_timestamp() - a.xact_start)::bigint, c.relname::text
from pg_catalog.pg_locks l
join pg_catalog.pg_class c on c.oid = l.relation
join pg_catalog.pg_namespace n on n.oid = c.relnamespace
left join pg_catalog.pg_stat_activity a on a.pid = l.pid
where n.nspname = $1::text and c.relname = any($2::text[]) and l.granted and l.mode = 'AccessExclusiveLock'
    and l.database = (select d.oid from pg_catalog.pg_database d where d.datname = current_database())
    and (a.xact_start is null or a.xact_start <= clock_timestamp() - $3::bigint * interval '1 second')
order by a.xact_start;

-- indexes: those on our tables, and whether they are used.
select i.relname::text, x.indisvalid and x.indisready
from pg_catalog.pg_index x
join pg_catalog.pg_class i on i.oid = x.indexrelid
join pg_catalog.pg_namespace n on n.oid = i.relnamespace
where n.nspname = $1::text;

-- bloat: live and dead rows per table, its size, and for how many seconds no vacuum has come to its end.
select
    s.relname::text, s.n_live_tup, s.n_dead_tup, pg_total_relation_size(s.relid),
    extract(epoch from clock_timestamp() - greatest(s.last_vacuum, s.last_autovacuum))::bigint,
    current_setting('autovacuum') = 'on'
    and not coalesce(c.reloptions @> array['autovacuum_enabled=false'], false)
from pg_catalog.pg_stat_user_tables s
join pg_catalog.pg_class c on c.oid = s.relid
where s.schemaname = $1::text and s.relname = any($2::text[])
order by s.n_dead_tup desc;

-- old_transactions: what keeps vacuum from removing dead rows: sessions, prepared transactions and replication slots.
select 'session', a.pid::text, a.application_name, a.state,
    extract(epoch from clock_timestamp() - a.xact_start)::bigint
from pg_catalog.pg_stat_activity a
where a.datname = current_database() and a.pid <> pg_backend_pid() and a.backend_type = 'client backend'
    and (a.backend_xmin is not null or a.backend_xid is not null)
    and a.xact_start < clock_timestamp() - $1::bigint * interval '1 second'
union all
select 'prepared', p.gid, p.owner::text, null, extract(epoch from clock_timestamp() - p.prepared)::bigint
from pg_catalog.pg_prepared_xacts p
where p.database = current_database() and p.prepared < clock_timestamp() - $1::bigint * interval '1 second'
union all
select 'slot', r.slot_name::text, case when r.active then 'in use' else 'not in use' end, null, age(r.xmin)::bigint
from pg_catalog.pg_replication_slots r
where r.xmin is not null and (not r.active or age(r.xmin) > $2::bigint)
order by 5 desc nulls last
limit 10;

-- unseen: how many sessions of other users this one may know nothing of, and whose they are.
select count(*), coalesce(array_agg(distinct a.usename::text order by a.usename::text), '{}')
from pg_catalog.pg_stat_activity a
where a.datname = current_database() and a.usesysid is not null and a.backend_type is null;

-- lock_waits: sessions that have waited for so many seconds with locks on our tables, and who keeps them waiting.
select
    w.pid, w.application_name, extract(epoch from clock_timestamp() - w.query_start)::bigint,
    b.pid, b.application_name, b.state, extract(epoch from clock_timestamp() - b.xact_start)::bigint
from pg_catalog.pg_stat_activity w
cross join lateral unnest(pg_blocking_pids(w.pid)) k (pid)
left join pg_catalog.pg_stat_activity b on b.pid = k.pid
where w.datname = current_database() and w.wait_event_type = 'Lock'
    and w.query_start < clock_timestamp() - $2::bigint * interval '1 second'
    and exists (
        select 1
        from pg_catalog.pg_locks l
        join pg_catalog.pg_class c on c.oid = l.relation
        join pg_catalog.pg_namespace n on n.oid = c.relnamespace
        where l.pid = w.pid and n.nspname = $1::text
    )
order by 3 desc
limit 10;

-- lives: whether the chain that a job j follows has not ended.
(
    exists (select 1 from onejob.job h where h.id = j.follows and h.ended is null)
    or exists (select 1 from onejob.job h where h.chain = j.follows and h.ended is null)
)

-- stranded: blocked jobs that wait for nobody who lives, and that no claim is about to look at.
select count(*)
from onejob.job j
where j.state = 'blocked'
    and case
        when j.follows is not null then not /* lives */
        else not exists (select 1 from onejob.blocker b where b.job = j.id and b.live)
    end
    and not exists (
        select 1 from onejob.recheck r
        where r.chain = j.follows or r.chain in (select b.chain from onejob.blocker b where b.job = j.id)
    );
