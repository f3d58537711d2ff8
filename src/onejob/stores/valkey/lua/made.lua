-- made: whether this queue was ever used; of the desk, whether there is a store.
--! reads

return reply(call('HEXISTS', DATA, 'm'))
