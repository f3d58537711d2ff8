-- migrate: which version of our tables is there, and the right to change it.

-- version: the schema's version as text; fails if there is no such table.
select value from onejob.meta where name = 'schema';

-- standing: whether the schema is there, and whether our table of facts is.
select to_regnamespace($1::text) is not null, to_regclass($1::text || '.meta') is not null;

-- lock: let nobody else migrate this schema until the transaction ends.
select pg_advisory_xact_lock(hashtextextended('onejob migrates ' || $1::text, 0));

-- taken: which of these names have relations in the schema.
select relname::text from pg_catalog.pg_class
where relnamespace = to_regnamespace($1::text) and relname = any($2::text[])
order by relname;

-- holders: who has locks on our tables, but for those in transactions shorter than so many seconds; the oldest first.
select h.pid, a.application_name, (extract(epoch from clock_timestamp() - a.xact_start) * 1000)::bigint
from (
    select distinct l.pid
    from pg_catalog.pg_locks l
    join pg_catalog.pg_class c on c.oid = l.relation
    join pg_catalog.pg_namespace n on n.oid = c.relnamespace
    join pg_catalog.pg_database d on d.oid = l.database
    where n.nspname = $1::text and d.datname = current_database() and l.granted
        and l.pid is distinct from pg_backend_pid()
) h
left join pg_catalog.pg_stat_activity a on a.pid = h.pid
where a.xact_start is null or a.xact_start < clock_timestamp() - $2::double precision * interval '1 second'
order by a.xact_start nulls last
limit 3;
