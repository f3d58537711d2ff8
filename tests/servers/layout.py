"""What a Valkey store has on its server, read without any of its code: every record and index member of every queue.

A second reading of the layout that `records.lua` documents. What it should be is in `layout_checks`.
"""

from __future__ import annotations

import re
import struct
from collections import Counter
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import parse_qs, urlsplit

import valkey

from .packed import unpacked

STATES = "bdpwrcfv"
LIVE = "bdpwr"
LATEST = 2**48 - 1
PACKED = b"jcbknlus"
"""Kinds of records that are packed; the others are bytes, or numbers in digits."""
HEAD = (
    "state seq priority due attempt failures crashes misses updated started ended worker lease aborting place lane digest "
    "follows chain root_queue place_in_chain next next_queue over over_at expires blockers awaited has_error"
)
CARD = (
    "task payload options key plan fingerprint lane_plan size items calls max_crashes since runs_anyway origin "
    "origin_queue accepted grave"
)
KEY = "text task holder generation since completed failed follows ended ended_at forget fingerprint"


class Record:
    """A packed record, by the names of its fields."""

    def __init__(self, names: str, values: list[Any]) -> None:
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
                self.heads[rest] = Record(HEAD, record)
            elif kind == b"c":
                self.cards[rest] = Record(CARD, record)
            elif kind == b"k":
                self.keys[rest] = Record(KEY, record)
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


def instant(at: float) -> bytes:
    return int(max(0, min(at, LATEST))).to_bytes(6, "big")


def rank(head: Record) -> bytes:
    seq = int(head.seq).to_bytes(6, "big")
    return int(2147483647 - head.priority).to_bytes(4, "big") + instant(head.due) + seq


def members_of(id: bytes, head: Record) -> set[bytes]:
    """The index members that a job must have, by its head alone."""
    state, lane, place = head.state.decode(), head.lane, head.place
    found: set[bytes] = {b"O" + int(head.seq).to_bytes(6, "big") + id}
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
