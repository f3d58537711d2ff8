"""What Valkey spends on us: the processor time of the whole server, its commands, and the memory that our keys take."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any
from unittest.mock import patch

import valkey

from bench import machine
from bench.gauges import Spent
from onejob.stores.valkey.conversation import Conversation, Words

_HINT = "PUBLISH"
_SCRIPTS = ("cmdstat_fcall", "cmdstat_evalsha", "cmdstat_eval")


class ValkeyGauge:
    """Fits `Gauge`. A round trip is a command; a commit is a script, whether it writes or not."""

    apart = True
    durable = False

    def __init__(self, client: Any) -> None:
        self._client = client
        self._calls = 0
        self._pid = client.info("server")["process_id"]

    def spent(self) -> Spent:
        """See `Gauge`."""
        commands = self._client.info("commandstats")
        scripts = sum(commands[name]["calls"] for name in _SCRIPTS if name in commands)
        return Spent(self._calls, scripts, machine.processor_time(self._pid))

    def written(self) -> int:
        """See `Gauge`: memory, all overhead and slack included."""
        return sum(
            self._client.memory_usage(key, samples=0) or 0 for key in self._client.scan_iter(count=1_000)
        )

    def round_trip(self) -> None:
        """See `Gauge`."""
        self._client.ping()

    def count(self) -> None:
        """A command is sent."""
        self._calls += 1


@contextmanager
def gauge(url: str) -> Iterator[ValkeyGauge]:
    """Watch the server, and count what is sent to any in this block."""
    say = Conversation.say
    with valkey.Valkey.from_url(url) as client:
        made = ValkeyGauge(client)

        def counted(conversation: Conversation, words: Words) -> bytes:
            if words[0] != _HINT:
                made.count()
            return say(conversation, words)

        with patch.object(Conversation, "say", counted):
            yield made
