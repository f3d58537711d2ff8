-- What is asked of a user's connection before jobs are put into its transaction.

-- place: how the server is reached as it sees itself, which nobody compares: one server may be reached in several ways.
coalesce(host(inet_server_addr()), 'a local socket') || ', port ' || coalesce(inet_server_port()::text, current_setting('port'))

-- started: since when the server runs, in seconds.
extract(epoch from pg_postmaster_start_time())::text

-- stands: the database that a connection is in, and whether there is a store; asks nothing that could fail there. Then one
-- value of each type that is read on it.
select current_database()::text, /* started */, /* place */, to_regclass('onejob.meta') is not null,
    true, 1::integer, 1::bigint, 'a'::text, decode('00', 'hex')

-- whose: the same with the store's own identity, which a restored copy has, too.
select current_database()::text, /* started */, /* place */, value::text
from onejob.meta where name = 'identity'
