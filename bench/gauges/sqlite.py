"""What SQLite spends inside our own process: the time in calls of `apsw`, and the frames of each commit."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Any
from unittest.mock import patch

import apsw

from bench.gauges import Spent
from onejob.stores.sqlite.executor import Executor
from onejob.stores.sqlite.store import SqliteStore

FRAME_HEADER = 24
_LOOKS = 20_000


class Watched:
    """A connection of the store, or a cursor of it, whose calls are timed; each lives in one thread, so no sum is shared."""

    def __init__(self, inner: Any, clock: Clock) -> None:
        self._inner = inner
        self._clock = clock

    def execute(self, *words: Any) -> Iterator[Any]:
        """Read to the end at once, as all our operations do."""
        return self._clock.timed(self._inner.execute, words)

    def executemany(self, *words: Any) -> Iterator[Any]:
        """As `execute`."""
        return self._clock.timed(self._inner.executemany, words)

    def cursor(self) -> Watched:
        """Another that is timed with it."""
        return Watched(self._inner.cursor(), self._clock)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner, name)


class Clock:
    """The time and the commits of one connection."""

    def __init__(self, connection: Any, lengths: dict[str, int]) -> None:
        """`lengths` are those of the logs, by file: several connections write to one."""
        self.seconds = 0.0
        self.looks = 0
        self.commits = 0
        self.frames = 0
        self._file = connection.filename
        self._lengths = lengths
        self._page = connection.pragma("page_size")
        self._longest = connection.pragma("wal_autocheckpoint")
        connection.set_wal_hook(self._committed)

    @property
    def logged(self) -> int:
        """Bytes of WAL."""
        return self.frames * (self._page + FRAME_HEADER)

    def timed(self, call: Any, words: tuple[Any, ...]) -> Iterator[Any]:
        """Run a statement to its end."""
        started = time.thread_time()
        try:
            return iter(list(call(*words)))
        finally:
            self.seconds += time.thread_time() - started
            self.looks += 1

    def _committed(self, connection: Any, name: str, length: int) -> int:
        """Count what was appended, and do what SQLite's own hook would do, which this one replaces."""
        self.commits += 1
        before = self._lengths.get(self._file, 0)
        self.frames += length - before if length > before else length
        self._lengths[self._file] = length
        if length >= self._longest:
            with suppress(apsw.BusyError):
                connection.wal_checkpoint(name)
        return apsw.SQLITE_OK


class SqliteGauge:
    """Fits `Gauge`. A round trip is a request to one of the store's threads; who writes by himself makes none."""

    apart = False
    durable = True

    def __init__(self) -> None:
        self._clocks: list[Clock] = []
        self._lengths: dict[str, int] = {}
        self._calls = 0
        self._inside, self._outside = _price()

    def spent(self) -> Spent:
        """See `Gauge`."""
        looks = sum(clock.looks for clock in self._clocks)
        return Spent(
            self._calls,
            sum(clock.commits for clock in self._clocks),
            sum(clock.seconds for clock in self._clocks) - looks * self._inside,
            looks * self._outside,
        )

    def written(self) -> int:
        """See `Gauge`."""
        return sum(clock.logged for clock in self._clocks)

    def round_trip(self) -> None:
        """See `Gauge`: there is no way to go."""

    def watch(self, connection: Any) -> Watched:
        """Time a connection from now on."""
        self._clocks.append(Clock(connection, self._lengths))
        return Watched(connection, self._clocks[-1])

    def count(self) -> None:
        """Somebody asks one of the threads."""
        self._calls += 1


def _price() -> tuple[float, float]:
    """The seconds that a look at the clock adds: to what it measures, and in all."""
    clock = Clock(apsw.Connection(":memory:"), {})
    started = time.thread_time()
    for _ in range(_LOOKS):
        iter(list(_nothing()))
    plain = time.thread_time() - started
    started = time.thread_time()
    for _ in range(_LOOKS):
        clock.timed(_nothing, ())
    watched = time.thread_time() - started
    return (clock.seconds - plain) / _LOOKS, (watched - plain) / _LOOKS


def _nothing() -> tuple[()]:
    return ()


@contextmanager
def gauge(_url: str) -> Iterator[SqliteGauge]:
    """Watch every store that is opened in this block."""
    made = SqliteGauge()
    connect, put = SqliteStore._connect, Executor._put  # pyright: ignore[reportPrivateUsage]

    def counted(executor: Executor, request: Any) -> None:
        made.count()
        put(executor, request)

    with (
        patch.object(SqliteStore, "_connect", lambda *words: made.watch(connect(*words))),
        patch.object(Executor, "_put", counted),
    ):
        yield made
