-- Room where a job stands: it is written when it comes, when it starts and when it ends, each time as a whole, and into
-- every index that it is in. With room for the next version beside the first, its page need not be left, and pages of
-- indexes need not be split, nor searched for entries to throw out. Running workers do not notice; what is there
-- already gets its room as it is rewritten.

alter table onejob.job set (fillfactor = 45);
alter index onejob.job_pkey set (fillfactor = 40);
alter index onejob.job_id_key set (fillfactor = 40);
