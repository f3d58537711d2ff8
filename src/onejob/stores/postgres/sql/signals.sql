-- signals: hints between processes. Nothing depends on them but latency.

-- notify: tell everyone who listens; inside a transaction, once it commits.
select pg_notify($1::text, $2::text);
