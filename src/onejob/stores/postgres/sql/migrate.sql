-- migrate: which version of our tables is there, and the right to change it.

-- version: the schema's version as text; fails if there is no such table.
select value from onejob.meta where name = 'schema';

-- standing: whether the schema is there, and whether our table of facts is.
select to_regnamespace($1::text) is not null, to_regclass($1::text || '.meta') is not null;

-- lock: let nobody else migrate this schema until the transaction ends.
select pg_advisory_xact_lock(hashtextextended('onejob migrates ' || $1::text, 0));

-- put_version: note the version.
insert into onejob.meta (name, value) values ('schema', $1::text)
on conflict (name) do update set value = excluded.value;
