-- What is asked of a user's connection before jobs are put into its transaction.

-- stands: the database that a connection is in, and whether there is a store; asks nothing that could fail there.
select current_database()::text, to_regclass('onejob.meta') is not null

-- whose: the store's own identity, its database, and since when its server runs: a restored copy has the same identity.
select value::text, current_database()::text, extract(epoch from pg_postmaster_start_time())::text
from onejob.meta where name = 'identity'
