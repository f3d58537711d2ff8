-- time: the store's clock.
--! reads records

return reply(NOW)
