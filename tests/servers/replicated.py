"""A Valkey server with a replica that takes its place, in good order or after its death; both of our own."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Self

from .folders import PATIENCE
from .valkey import ValkeyServer


class ReplicatedValkey:
    """Two servers of which one leads; they change their roles, and keep their addresses."""

    def __init__(self, **settings: str) -> None:
        """Nothing runs before `start`. `settings` are those of valkey.conf, for both."""
        self.primary = ValkeyServer(**settings)
        self.replica = ValkeyServer(**settings)

    @property
    def url(self) -> str:
        """The address of both, as stores take it."""
        return f"{self.primary.url},{self.replica.address}"

    def start(self) -> Self:
        """Run until the replica has what the primary has."""
        self.primary.start()
        self.replica.start()
        self.replica.follow(self.primary)
        return self

    def hand_over(self) -> None:
        """As an operator does who wants to lose nothing: the primary waits until the replica has everything."""
        self.primary.execute("FAILOVER", "TO", "127.0.0.1", self.replica.port)
        deadline = time.monotonic() + PATIENCE
        while self.replica.execute("INFO", "replication")["role"] != "master":
            assert time.monotonic() < deadline, self.primary.log[-4000:]
            time.sleep(0.01)
        self.primary.wait_until_in_step()
        self._swap()

    def lose_primary(self, alone: Callable[[], object]) -> None:
        """The primary is cut off from its replica, goes on alone until that returns, and dies; the replica leads."""
        self.replica.execute("REPLICAOF", "NO", "ONE")
        alone()
        self.primary.kill()
        self._swap()

    def mend(self) -> None:
        """Whoever died comes back as the replica of the other, and forgets what that one does not know."""
        self.replica.settings["replicaof"] = f"127.0.0.1 {self.primary.port}"
        self.replica.start()
        del self.replica.settings["replicaof"]
        self.replica.wait_until_in_step()

    def remove(self) -> None:
        """Leave nothing behind."""
        self.primary.remove()
        self.replica.remove()

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(self, *_: object) -> None:
        self.remove()

    def _swap(self) -> None:
        self.primary, self.replica = self.replica, self.primary
