"""Where the servers are: which of them leads, or which node of a cluster has a slot. Shared by all connections of a link.

It is read from any thread. Each change is one step, and whoever knows an older state is told by the server.
"""

from __future__ import annotations

from binascii import crc_hqx
from typing import Any, Final

from onejob.stores.valkey.address import Address
from onejob.stores.valkey.connection import Node
from onejob.stores.valkey.failures import MOVED, ServerError

SLOTS: Final = 16_384


class Topology:
    """What is known of the servers of an address."""

    def __init__(self, address: Address) -> None:
        self._address = address
        self._leader: Node | None = None
        self._owners: list[Node | None] | None = None
        self._known: tuple[Node, ...] = ()

    def owner(self, key: str | bytes) -> Node | None:
        """The server that has a key; None: somebody has to be asked."""
        if not self._address.cluster:
            return self._leader
        owners = self._owners
        return None if owners is None else owners[slot_of(key)]

    def candidates(self) -> list[Node]:
        """Whom to ask, those first who were there the last time."""
        return list(dict.fromkeys((*self._known, *self._address.hosts)))

    def leads(self, node: Node) -> None:
        """A single server, or the one of several that takes writes."""
        self._leader = node

    def learn(self, asked: Node, slots: Any) -> None:
        """A node of the cluster answered CLUSTER SLOTS."""
        owners: list[Node | None] = [None] * SLOTS
        for first, last, primary, *_ in slots:
            node = ((primary[0] or b"").decode() or asked[0], primary[1])
            owners[first : last + 1] = [node] * (last + 1 - first)
        self._known = tuple(node for node in dict.fromkeys(owners) if node is not None)
        self._owners = owners

    def moved(self, asked: Node, error: ServerError) -> Node:
        """A node said that another has a slot: `MOVED SLOT HOST:PORT`, or `ASK …`, which holds for one call only."""
        slot, _, place = error.text.partition(" ")
        host, _, port = place.partition(" ")[0].rpartition(":")
        node = (host or asked[0], int(port))
        owners = self._owners
        if error.code == MOVED and owners is not None:
            owners[int(slot)] = node
        return node

    def primaries(self) -> tuple[Node, ...]:
        """Those that have slots, as far as is known."""
        return self._known

    def forget(self) -> None:
        """Somebody could not be reached: look again before the next call."""
        self._leader = None
        self._owners = None


def slot_of(key: str | bytes) -> int:
    """The slot of a key, or of its hash tag if it has one."""
    raw = key.encode() if isinstance(key, str) else key
    begin = raw.find(b"{")
    end = raw.find(b"}", begin + 1)
    return crc_hqx(raw[begin + 1 : end] if 0 <= begin < end - 1 else raw, 0) % SLOTS
