"""What can be set per queue: where its failed jobs are buried, and whether its payloads are compressed.

A task overrides its queue, and a queue overrides the app.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final, Literal, TypeAlias, cast

import msgspec

from onejob.core.dedup import UNSET, Unset
from onejob.core.errors import InvalidOption, shown
from onejob.core.options import check_name

Compression: TypeAlias = Literal["gzip"]


class Queue(msgspec.Struct, frozen=True, kw_only=True):
    """Settings of one queue; what is not given is as the app says, and None turns it off.

    `dead_letter` names the queue in which a copy of each failed job waits. `compression` is `"gzip"`: payloads
    and results of 256 bytes or more are stored compressed where that saves a tenth or more.
    """

    compression: Compression | Unset | None = UNSET
    dead_letter: str | Unset | None = UNSET

    def __post_init__(self) -> None:
        if self.compression is not UNSET:
            checked_compression("Queue(compression=…)", self.compression)
        if self.dead_letter is not UNSET:
            checked_dead_letter(self.dead_letter)


class Queues:
    """The settings of all queues of an app, known or not."""

    __slots__ = ("_app", "_named")

    def __init__(
        self,
        named: Mapping[str, Queue] | None = None,
        *,
        compression: object = None,
        dead_letter: object = None,
    ) -> None:
        self._app = Queue(
            compression=checked_compression("App(compression=…)", compression),
            dead_letter=checked_dead_letter(dead_letter),
        )
        self._named = {} if named is None else _checked(named)

    def compresses(self, queue: str) -> bool:
        """True if what is stored for jobs of this queue is compressed where that helps."""
        own = self._named.get(queue, _AS_APP).compression
        return (self._app.compression if own is UNSET else own) is not None

    def dead_letter(self, queue: str) -> str | None:
        """Where failed jobs of this queue are buried; the app's own dead-letter queue buries nothing."""
        own = self._named.get(queue, _AS_APP).dead_letter
        if own is UNSET:
            own = None if self._app.dead_letter == queue else self._app.dead_letter
        return cast("str | None", own)


def checked_dead_letter(value: object) -> str | None:
    """Return the name of a dead-letter queue, or None for none."""
    return None if value is None else check_name("Dead-letter queue", value)


def checked_compression(what: str, value: object) -> Compression | None:
    """Return a compression that exists, or None for none."""
    if value is None or value == "gzip":
        return cast("Compression | None", value)
    raise InvalidOption(f'{what} must be "gzip" or None, not {shown(value)}.')


def refuse_own_grave(queue: str, dead_letter: object) -> None:
    """Raise if jobs of a queue would be buried in that queue itself."""
    if dead_letter == queue:
        raise InvalidOption(
            f"Queue {queue!r} cannot be its own dead-letter queue: name another, or dead_letter=None for none."
        )


def _checked(named: Mapping[str, Queue]) -> dict[str, Queue]:
    given = cast("object", named)
    if not isinstance(given, Mapping):
        raise InvalidOption(f'App(queues=…) must be a dict such as {{"mail": Queue(…)}}, not {shown(given)}.')
    for name, settings in cast("Mapping[object, object]", given).items():
        queue = check_name("Queue", name)
        if not isinstance(settings, Queue):
            raise InvalidOption(f"App(queues=…)[{queue!r}] must be Queue(…), not {shown(settings)}.")
        refuse_own_grave(queue, settings.dead_letter)
    return dict(named)


_AS_APP: Final = Queue()
