"""What a Valkey store has on its server, read without any of its code: every record and index member of every queue.

A second reading of the layout that `records.lua` documents. What it should be is in `layout_checks`.
"""

from __future__ import annotations

import re
import struct
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import parse_qs, urlsplit

import valkey

from .packed import unpacked

STATES = "bdpwrcfv"
LIVE = "bdpwr"
LATEST = 2**48 - 1
PACKED = b"bnlus"
"""Kinds of records that are packed as a whole; of the others some have an order of their own, and some are digits."""
HEAD = (
    "state seq priority due attempt failures crashes misses updated accepted started ended aborting followed changed "
    "place place_in_chain blockers lease worker digest lane"
)
HEAD_SIZES = (-1, 6, 4, 6, 4, 4, 4, 4, 6, 6, 6, 6, 1, 1, 1, 1, 4, 4)
"""Numbers are that long, a text that many bytes; behind them are texts, each after its length in one byte."""
HEAD_MORE = "follows chain root_queue next next_queue over over_at expires awaited has_error since"
CARD = "task options key fingerprint plan items size lane_plan runs_anyway grave origin origin_queue payload"
KEY = "text task holder generation since completed failed follows ended ended_at forget fingerprint"


class Record:
    """A record, by the names of its fields; what there is not is False."""

    def __init__(self, names: str, values: Sequence[Any]) -> None:
        self.__dict__.update(zip(names.split(), values, strict=True))

    def __getattr__(self, name: str) -> Any:
        raise AttributeError(name)

    @property
    def is_over(self) -> bool:
        """Of a head: the first of a chain that has ended as a whole."""
        return bool(self.ended and not self.chain and (not self.next or self.over))


@dataclass
class Queue:
    """Everything of one queue."""

    name: str
    heads: dict[bytes, Record] = field(default_factory=dict[bytes, Record])
    cards: dict[bytes, Record] = field(default_factory=dict[bytes, Record])
    keys: dict[bytes, Record] = field(default_factory=dict[bytes, Record])
    blockers: dict[bytes, dict[bytes, str]] = field(default_factory=dict[bytes, dict[bytes, str]])
    """By job, the chains that it waits or waited for, and their queues."""
    lanes: dict[bytes, list[Any]] = field(default_factory=dict[bytes, list[Any]])
    others: dict[str, dict[bytes, bytes]] = field(default_factory=dict[str, dict[bytes, bytes]])
    """Records of the other kinds as they are, by their letter."""
    index: set[bytes] = field(default_factory=set[bytes])
    broken: list[str] = field(default_factory=list[str])
    """Records that could not be read."""

    def put(self, name: bytes, value: bytes) -> None:
        kind, rest = name[:1], name[1:]
        try:
            record = unpacked(value) if kind in PACKED or name == b"mlimits" else None
            if kind == b"j":
                self.heads[rest] = head_of(value)
            elif kind == b"c":
                self.cards[rest] = card_of(value)
            elif kind == b"k":
                self.keys[rest] = key_of(value)
            elif kind == b"b":
                self.blockers[rest] = {chain: queue.decode() for chain, queue in record}
            elif kind == b"l":
                self.lanes[rest] = record
            else:
                self.others.setdefault(kind.decode(), {})[rest] = value
        except (ValueError, TypeError, KeyError, IndexError, struct.error) as error:
            self.broken.append(f"{self.name}: {name!r} cannot be read: {error}")

    def members(self, letter: str) -> set[bytes]:
        return {member for member in self.index if member[:1] == letter.encode()}

    def of(self, letter: str) -> dict[bytes, bytes]:
        return self.others.get(letter, {})


def head_of(text: bytes) -> Record:
    """The head that these bytes are."""
    reading = Reading(text)
    values = [reading.text(1) if size < 0 else reading.number(size) for size in HEAD_SIZES]
    texts = [reading.counted(1), reading.counted(1), reading.counted(1) or False, reading.counted(2) or False]
    priority, started, ended, place = values[2], values[10], values[11], values[15]
    values[2] = priority - 2**32 if priority >= 2**31 else priority
    values[10], values[11] = started - 1 if started else False, ended - 1 if ended else False
    values[15] = place - 1 if place else False
    rest = reading.rest()
    more = unpacked(rest) if rest else []
    size = len(HEAD_MORE.split())
    if len(more) > size or (more and not more[-1] and more[-1] != 0):
        raise ValueError("what few heads have is not as short as it could be")
    return Record(f"{HEAD} {HEAD_MORE}", [*values, *texts, *more, *[False] * (size - len(more))])


def card_of(text: bytes) -> Record:
    """The card that these bytes are."""
    reading = Reading(text)
    reading.number(4)  # lost leases allowed
    task, options, key, fingerprint, more = (reading.number(size) for size in (2, 4, 2, 1, 4))
    texts = reading.text(task), reading.text(options) or False, reading.text(key - 1) if key else False
    mark = reading.text(fingerprint) or False
    packed = unpacked(reading.text(more)) if more else [False, 0]
    rest = [mark, *packed, *[False] * (8 - len(packed))]
    return Record(CARD, [*texts, *rest, reading.rest()])


def key_of(text: bytes) -> Record:
    """The key that these bytes are."""
    reading = Reading(text)
    name, task, holder, generation = (
        reading.counted(2),
        reading.counted(2),
        reading.text(16),
        reading.number(4),
    )
    since, completed, failed = reading.moment(), reading.moment(), reading.moment()
    follows, ended = reading.counted(1) or False, reading.counted(1) or False
    ended_at, forget, fingerprint = reading.moment(), reading.moment(), reading.counted(1) or False
    if reading.rest():
        raise ValueError("a key goes on behind its end")
    values = (
        name,
        task,
        holder,
        generation,
        since,
        completed,
        failed,
        follows,
        ended,
        ended_at,
        forget,
        fingerprint,
    )
    return Record(KEY, values)


class Reading:
    """Bytes, from the first to the last."""

    def __init__(self, text: bytes) -> None:
        self._text = text
        self._at = 0

    def text(self, size: int) -> bytes:
        found = self._text[self._at : self._at + size]
        if len(found) != size:
            raise ValueError("it ends too early")
        self._at += size
        return found

    def number(self, size: int) -> int:
        return int.from_bytes(self.text(size), "big")

    def counted(self, size: int) -> bytes:
        return self.text(self.number(size))

    def moment(self) -> float | bool:
        [found] = struct.unpack(">d", self.text(8))
        return False if found < 0 else found

    def rest(self) -> bytes:
        return self.text(len(self._text) - self._at)


def instant(at: float) -> bytes:
    return int(max(0, min(at, LATEST))).to_bytes(6, "big")


def rank(head: Record) -> bytes:
    seq = int(head.seq).to_bytes(6, "big")
    return int(2147483647 - head.priority).to_bytes(4, "big") + instant(head.due) + seq


def members_of(id: bytes, head: Record) -> set[bytes]:
    """The index members that a job must have, by its head alone."""
    state, lane, place = head.state.decode(), head.lane, head.place
    found: set[bytes] = {(b"Q" if head.digest else b"O") + int(head.seq).to_bytes(6, "big") + id}
    match state:
        case "w":
            found.add(b"R" + rank(head) + id)
        case "r":
            found.add(b"W" + head.worker + b"\0" + id)
        case "d":
            found.add((b"E" if lane else b"D") + instant(head.due) + id)
        case "b" if head.follows:
            found.add(b"f" + head.follows + id)
        case "c" | "f" | "v" if head.is_over:
            found.add(b"Z" + (head.over or head.state) + instant(head.over_at or head.ended) + id)
        case _:
            pass
    if lane and place is not False:
        name = lane + b"\0"
        if place == 0:
            found.add(b"v" + name + id)
        elif place == 1:
            found |= {b"t" + name + int(head.seq).to_bytes(6, "big") + id, b"q" + name + rank(head) + id}
        else:
            found.add(b"s" + name + id)
            if place == 3 and state in "pw":
                found.add(b"H" + name + rank(head) + id)
            if place == 2 and state == "w":
                found.add(b"y" + name + rank(head) + id)
    if head.expires and state in "bdpw":
        found.add(b"X" + instant(head.expires) + id)
    return found


class Reader:
    """Reads a namespace of a server, or of a cluster."""

    def __init__(self, url: str) -> None:
        parts = urlsplit(url)
        self.namespace = parse_qs(parts.query).get("namespace", ["onejob"])[0]
        self._ports = [int(port) for port in re.findall(r":([0-9]+)", parts.netloc)]

    def read(self) -> dict[str, Queue]:
        """All queues by their names; the desk is the one without."""
        found: dict[str, Queue] = {}
        for port in self._ports:
            with valkey.Valkey(port=port, socket_timeout=30) as client:
                for key in client.scan_iter(f"{{{self.namespace}:*", count=1_000):
                    match = re.fullmatch(
                        rb"\{%s:(.*)\}:(data|index)" % re.escape(self.namespace).encode(), key
                    )
                    if match is None:
                        raise ValueError(f"nobody knows the key {key!r}")
                    name = match[1].decode()
                    queue = found.setdefault(name, Queue(name))
                    if match[2] == b"data":
                        for record, value in client.hscan_iter(key, count=1_000):
                            queue.put(record, value)
                    else:
                        queue.index |= set(client.zrange(key, 0, -1))
        return found


def stands(queues: dict[str, Queue]) -> Counter[str]:
    """How many jobs there are, by the letter of their state."""
    return Counter(head.state.decode() for queue in queues.values() for head in queue.heads.values())
