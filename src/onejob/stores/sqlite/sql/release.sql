-- release: make a key vacant, if a holder is named while it has it; its holder lives on without it.
delete from onejob_key where digest = :digest and holder = coalesce(:holder, holder) returning holder;
