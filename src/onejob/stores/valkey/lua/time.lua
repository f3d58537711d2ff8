-- time: the store's clock.
--! reads

return reply(NOW)
