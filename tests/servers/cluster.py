"""A real Valkey Cluster for tests: three primaries of our own, formed without any tool, whose slots can be moved, and with
replicas, if wanted, that take over.
"""

from __future__ import annotations

import shutil
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Self

import valkey

from .folders import PATIENCE, free_port, hold, new_folder
from .valkey import ValkeyServer

SLOTS = 16_384
SETTINGS = {
    "cluster-enabled": "yes",
    "cluster-announce-ip": "127.0.0.1",
    "cluster-node-timeout": "2000",
}


class ValkeyCluster:
    """Nodes on ports and in folders of their own, which keep both over restarts."""

    kind = "cluster"

    def __init__(
        self, folder: Path | None = None, *, size: int = 3, replicas: int = 0, **settings: str
    ) -> None:
        """Nothing runs before `start`. Each of `size` primaries has so many replicas. `settings` are those of valkey.conf, for
        every node."""
        self.folder = self.new_folder() if folder is None else folder
        self._hold = hold(self.folder) if folder is None else None
        self._size = size
        self.nodes = [self._node(number, settings) for number in range(size * (1 + replicas))]
        """The first ones begin as primaries."""

    @classmethod
    def new_folder(cls) -> Path:
        """A folder that it can run in."""
        return new_folder(cls.kind)

    @property
    def url(self) -> str:
        """Its address, as stores take it."""
        return f"valkey+cluster://{','.join(node.address for node in self.nodes)}"

    def start(self) -> Self:
        """Run until every slot is served and every node knows it."""
        for node in self.nodes:
            node.start()
        first = self.nodes[: self._size]
        bounds = [SLOTS * number // len(first) for number in range(len(first) + 1)]
        for number, node in enumerate(first):
            node.execute("CLUSTER ADDSLOTSRANGE", bounds[number], bounds[number + 1] - 1)
            node.execute("CLUSTER SET-CONFIG-EPOCH", number + 1)
        for node in self.nodes:
            for other in self.nodes:
                if other is not node:
                    node.execute("CLUSTER MEET", "127.0.0.1", other.port, int(other.settings["cluster-port"]))
        self.wait_until_whole()
        for number, node in enumerate(self.nodes[self._size :]):
            node.execute("CLUSTER REPLICATE", _id(first[number % len(first)]))
        self.wait_for_replicas()
        return self

    @property
    def leaders_url(self) -> str:
        """The address of those who serve slots just now."""
        return f"valkey+cluster://{','.join(node.address for node in self.primaries)}"

    @property
    def primaries(self) -> list[ValkeyServer]:
        """The nodes that serve slots just now."""
        ports = {port for _, _, (_, port, *_rest), *_replicas in self._slots()}
        return [node for node in self.nodes if node.port in ports]

    def replica_of(self, primary: ValkeyServer) -> ValkeyServer:
        """A node that follows it, once the others have heard of that."""
        found: list[ValkeyServer] = []

        def is_known() -> bool:
            ports = {
                port
                for _, _, (_, leader, *_rest), *replicas in self._slots()
                if leader == primary.port
                for _, port, *_more in replicas
            }
            found.extend(node for node in self.nodes if node.port in ports)
            return bool(found)

        _until(is_known, "nobody has heard of its replica")
        return found[0]

    def wait_for_replicas(self) -> None:
        """Until every replica hears its primary."""
        _until(lambda: all(_is_in_step(node) for node in self.nodes), "a replica does not follow")

    def hand_over(self, primary: ValkeyServer) -> None:
        """As an operator does who wants to lose nothing: the primary waits until its replica has everything."""
        replica = self.replica_of(primary)
        replica.execute("CLUSTER FAILOVER")
        _until(lambda: _leads(replica), "the replica does not take over")
        self.wait_until_whole()

    def lose(self, primary: ValkeyServer, behind: float = 0) -> None:
        """A primary dies, and the others find that out and let its replica take over; then it comes back as a replica.

        What it acknowledged in the seconds before that has not been sent to its replica.
        """
        replica = self.replica_of(primary)
        with replica.frozen():
            if behind:
                primary.execute("CLIENT", "KILL", "TYPE", "replica")
                time.sleep(behind)
            primary.kill()
        _until(lambda: _leads(replica), "the replica does not take over")
        primary.start()
        self.wait_until_whole()
        self.wait_for_replicas()

    def wait_until_whole(self) -> None:
        """Until all nodes agree that every slot is served."""
        _until(lambda: all(self._is_whole(node) for node in self.nodes), "the cluster is not whole")

    def slot(self, key: str | bytes) -> int:
        """The slot that a key belongs to."""
        return self._any().execute("CLUSTER KEYSLOT", key)

    def owner(self, slot: int) -> ValkeyServer:
        """The node that serves a slot."""
        for first, last, (_, port, *_rest), *_replicas in self._slots():
            if first <= slot <= last:
                return next(node for node in self.nodes if node.port == port)
        raise LookupError(slot)

    def move_slot(self, slot: int, to: ValkeyServer) -> None:
        """Give a slot with all its keys to another node."""
        with self.slot_on_the_move(slot, to):
            pass

    @contextmanager
    def slot_on_the_move(self, slot: int, to: ValkeyServer) -> Iterator[ValkeyServer]:
        """A slot between two nodes: its keys are where they were (see `move_keys`), new ones are made at the other.

        Gives the node that it leaves. Afterwards all keys are moved, and the slot is the other's.
        """
        source = self.owner(slot)
        assert source is not to, "it is there already"
        to.execute("CLUSTER SETSLOT", slot, "IMPORTING", _id(source))
        source.execute("CLUSTER SETSLOT", slot, "MIGRATING", _id(to))
        yield source
        while self.move_keys(slot, source, to, 100):
            pass
        for node in (to, source, *(node for node in self.nodes if node not in (to, source))):
            node.execute("CLUSTER SETSLOT", slot, "NODE", _id(to))

    def move_keys(self, slot: int, source: ValkeyServer, to: ValkeyServer, count: int) -> int:
        """Move so many keys of a slot that is on the move; how many there were."""
        keys = source.execute("CLUSTER GETKEYSINSLOT", slot, count)
        if keys:
            source.execute("MIGRATE", "127.0.0.1", to.port, "", 0, 5_000, "KEYS", *keys)
        return len(keys)

    def remove(self) -> None:
        """Leave nothing behind."""
        for node in self.nodes:
            node.remove()
        if self._hold is not None:
            self._hold.close()
        shutil.rmtree(self.folder, ignore_errors=True)

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(self, *_: object) -> None:
        self.remove()

    def _node(self, number: int, settings: dict[str, str]) -> ValkeyServer:
        folder = self.folder / str(number)
        folder.mkdir()
        given = {name.replace("_", "-"): value for name, value in settings.items()}
        return ValkeyServer(folder, **{**SETTINGS, "cluster-port": str(free_port()), **given})

    def _any(self) -> ValkeyServer:
        return next(node for node in self.nodes if node.runs)

    def _slots(self) -> list[list]:
        with self._any().client() as client:
            client.set_response_callback("CLUSTER SLOTS", lambda answer, **_: answer)
            return client.execute_command("CLUSTER SLOTS")

    def _is_whole(self, node: ValkeyServer) -> bool:
        info = node.execute("CLUSTER INFO")
        known = node.execute("CLUSTER NODES")
        return (
            info["cluster_state"] == "ok"
            and int(info["cluster_known_nodes"]) == len(self.nodes)
            and all(other["connected"] and "fail" not in other["flags"] for other in known.values())
        )


def _leads(node: ValkeyServer) -> bool:
    return node.execute("INFO", "replication")["role"] == "master"


def _is_in_step(node: ValkeyServer) -> bool:
    return node.execute("INFO", "replication").get("master_link_status", "up") == "up"


def _id(node: ValkeyServer) -> str:
    return node.execute("CLUSTER MYID").decode()


def _until(condition: Callable[[], bool], otherwise: str) -> None:
    deadline = time.monotonic() + PATIENCE
    while not _holds(condition):
        assert time.monotonic() < deadline, otherwise
        time.sleep(0.02)


def _holds(condition: Callable[[], bool]) -> bool:
    try:
        return condition()
    except valkey.ValkeyError:  # it may just be starting
        return False
