-- release: make a key vacant, if a holder is named while it has it; its holder lives on without it.
delete from onejob.key where digest = $1::bytea and holder = coalesce($2::uuid, holder) returning holder;
