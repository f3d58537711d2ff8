-- opening: the first lines of every script that writes. Every key of a queue exists from its first use on, so that in the
-- midst of a slot's migration a script is refused as a whole or runs as a whole.

fresh = call('HSETNX', DATA, 'm', '1')
if fresh == 1 then add('') end
