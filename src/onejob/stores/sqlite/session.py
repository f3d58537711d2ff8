"""A connection with what operations need around it: the clock, ids as bytes, hints, and absorbed counts."""

from __future__ import annotations

import logging
import os
import time
from collections import Counter, defaultdict, deque
from collections.abc import Callable, Iterable
from enum import IntEnum

import apsw

from onejob.absorbing import Absorbed
from onejob.core.job import JobId
from onejob.sql.ids import id_to_bytes
from onejob.stores.sqlite.attempts import Start
from onejob.stores.sqlite.connect import Bindings, Connection, Row, array
from onejob.stores.sqlite.statements import statements

logger = logging.getLogger("onejob")
FLUSH_EVERY = 1.0
LOOK_EVERY = 1.0


def system_clock() -> int:
    """Milliseconds since the epoch."""
    return time.time_ns() // 1_000_000


class Touch(IntEnum):
    """What happened to a lane: bits, and plain ones, because they are on the way of every call."""

    CAME = 1
    """A new job, younger than all others; or one of its jobs started."""
    RETURNED = 2
    """A job that may be older than those whose turn it is became ready, or the lane's limits changed."""
    LEFT = 4
    """A job ended or is not ready any more, or time has passed."""
    LEFT_AGAIN = 8
    """And so did another."""


class Session:
    """What an operation works with. Lives in one thread."""

    def __init__(self, connection: Connection, clock: Callable[[], int], path: str) -> None:
        self.connection = connection
        self._path = path
        self._inode = _inode(path)
        self._looked = time.monotonic()
        cursor = connection.cursor()  # one for all: every operation reads its rows to the end
        self.execute = cursor.execute
        self.executemany = cursor.executemany
        self.clock = clock
        self.topics: set[str] = set()
        """What the operations of this transaction have to tell others, once it is committed."""
        self.lanes: dict[tuple[str, str], int] = {}
        """Queues and keys of lanes to look at before the operation is done."""
        self.starts: dict[JobId, Start] = {}
        """Jobs that were claimed here and have not been settled since. One may have been, elsewhere, or its claim undone."""
        self.strandings = 0
        """How many jobs have ever failed here because of others."""
        self._uncounted: list[Absorbed] = []
        self.absorb = self._uncounted.append
        """Count a duplicate; it is written with some later commit, never by itself."""
        self._absorbed: Counter[Absorbed] = Counter()
        self._counted_elsewhere: deque[Absorbed] = deque()
        self._flushed = time.monotonic()
        self._flushing = False

    def is_stale(self) -> bool:
        """True once the file behind the connection is no longer the one at its path; looks once a second."""
        now = time.monotonic()
        if now - self._looked < LOOK_EVERY:
            return False
        self._looked = now
        return _inode(self._path) != self._inode

    def now(self, given: int | None = None) -> int:
        """The instant at which an operation happens."""
        return self.clock() if given is None else given

    def rows(self, statement: str, bindings: Bindings) -> list[Row]:
        """Run a statement to its end and return its rows."""
        return list(self.execute(statement, bindings))

    def first(self, statement: str, bindings: Bindings) -> Row | None:
        """Run a statement to its end and return its first row."""
        rows = list(self.execute(statement, bindings))
        return rows[0] if rows else None

    def run(self, statement: str, bindings: Bindings) -> int:
        """Run a statement for its effect and return how many rows it changed."""
        self.execute(statement, bindings)
        return self.connection.changes()

    def tell(self, kind: str, queues: Iterable[str]) -> None:
        """Remember to hint at `work` or `done` in these queues."""
        self.topics.update(f"{kind}:{queue}" for queue in queues)

    def touch(self, queue: str, lane: str | None, how: int) -> None:
        """Remember to look at a lane to which something happened; `how` is made of bits of `Touch`."""
        if lane is not None:
            place = (queue, lane)
            before = self.lanes.get(place, 0)
            again = Touch.LEFT_AGAIN if before & how & Touch.LEFT else 0
            self.lanes[place] = before | how | again

    def count_absorbed(self, absorbed: Absorbed) -> bool:
        """As `absorb`, from any thread, of what needs no commit; True if nobody would come to write it by himself."""
        first = not (self._absorbed or self._counted_elsewhere)
        self._counted_elsewhere.append(absorbed)
        return first

    @property
    def flush_after(self) -> float | None:
        """How long an idle thread may sleep before it should flush; None is for ever."""
        return FLUSH_EVERY if self._absorbed or self._counted_elsewhere else None

    def flush_absorbed(self, *, always: bool = False) -> None:
        """Write the counts, if there are any and it is time; part of whatever transaction is open."""
        while self._counted_elsewhere:
            self._absorbed[self._counted_elsewhere.popleft()] += 1
        if self._absorbed and (always or time.monotonic() - self._flushed >= FLUSH_EVERY):
            self._write_counts()
            self._flushed = time.monotonic()
            self._flushing = True

    def _write_counts(self) -> None:
        """Those that are alike by one statement, which most are: a key that is asked for once a second."""
        alike: defaultdict[tuple[int, bool], list[bytes]] = defaultdict(list)
        for (digest, holder, differs), count in self._absorbed.items():
            alike[count, differs].append(id_to_bytes(holder) + digest)
        for (count, differs), values in alike.items():
            self.execute(statements("enqueue")["count_absorbed"], (count, count * differs, array(values)))

    def postpone_flush(self) -> None:
        """A flush failed: try again after a while."""
        self._flushed = time.monotonic()

    def committed(self) -> None:
        """The transaction is on disk: what it counted counts."""
        if self._flushing:
            self._absorbed.clear()
            self._flushing = False
        self._absorbed.update(self._uncounted)
        self._uncounted.clear()

    def forget_uncommitted(self) -> None:
        """The transaction was rolled back: it told nothing and counted nothing."""
        self.topics.clear()
        self.lanes.clear()
        self._uncounted.clear()
        self._flushing = False

    def close(self) -> None:
        """Write what is still only counted, and close the connection."""
        try:
            if self._absorbed or self._counted_elsewhere:
                self.execute("begin immediate")
                self.flush_absorbed(always=True)
                self.execute("commit")
        except apsw.Error as error:
            logger.warning("counts of absorbed duplicates could not be stored: %s", error)
        finally:
            self.connection.close()


def _inode(path: str) -> int | None:
    try:
        return os.stat(path).st_ino  # noqa: PTH116 - on the way of every call
    except OSError:
        return None
