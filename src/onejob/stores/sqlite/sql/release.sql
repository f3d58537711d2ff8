-- release: make a key vacant; its holder lives on without it.
delete from onejob_key where digest = :digest returning holder;
