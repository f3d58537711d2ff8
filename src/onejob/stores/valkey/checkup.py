"""checkup: what is wrong with the servers behind a store, in words, each with its remedy. Nothing is changed."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Final

from onejob.core.errors import MissingDriver, StoreUnavailable
from onejob.store import Finding, Level
from onejob.stores.valkey.address import Address
from onejob.stores.valkey.facts import KEEPS_ALL, OLDEST, Facts
from onejob.stores.valkey.failures import NoPrimary
from onejob.stores.valkey.link import Link
from onejob.stores.valkey.listening import channel

NEARLY_FULL: Final = 0.9
"""The part of its memory from which on a server is worth a word."""


async def checkup(link: Link) -> list[Finding]:
    """Look at every server; see `Inspector.checkup`."""
    try:
        facts = await link.facts()
    except MissingDriver:
        raise
    except Exception as error:
        return [unreachable(error)]
    return findings(facts, link.address, hints_arrive=link.signals.arrive)


def findings(facts: Sequence[Facts], address: Address, *, hints_arrive: bool | None = None) -> list[Finding]:
    """What is wrong, the worst first."""
    found = [
        *on_coverage(facts),
        *(finding for one in facts for finding in on_server(one, address)),
        *on_hints(hints_arrive, address),
    ]
    return sorted(found, key=lambda finding: finding.level is not Level.ERROR)


def unreachable(error: Exception) -> Finding:
    """No server lets us look at all, or none that takes writes."""
    if isinstance(error, NoPrimary):
        return Finding(
            Level.ERROR,
            "read_only",
            f"There is nobody to write to: {error}",
            "Name the primary in the store's URL, or all of them with commas between: the one that leads is found.",
            blocking=True,
        )
    return Finding(
        Level.ERROR,
        "unreachable",
        f"The store cannot be looked into: {error}",
        "Start the server, or correct the store's URL or the network."
        if isinstance(error, StoreUnavailable)
        else "The server answers: mend what it says there, and look again.",
        blocking=True,
    )


def on_server(facts: Facts, address: Address) -> Iterator[Finding]:
    """A server that must not be used, or may lose jobs."""
    name = f"{facts.server} at {facts.node or address.place}"
    if facts.version < OLDEST:
        yield Finding(
            Level.ERROR,
            "old_server",
            f"{name} is older than onejob works with.",
            "Upgrade it to Valkey 8 or later.",
        )
    if facts.in_cluster and not address.cluster:
        yield Finding(
            Level.ERROR,
            "cluster",
            f"{name} is a node of a cluster, and the store's URL is that of a single server.",
            "Start the store's URL with valkey+cluster://, or valkeys+cluster:// for TLS.",
            blocking=True,
        )
    if facts.policy not in ("", KEEPS_ALL):
        yield Finding(
            Level.ERROR,
            "eviction",
            f"{name} throws keys away when its memory is full (maxmemory-policy {facts.policy}): acknowledged jobs get lost, "
            "and no worker starts.",
            f"CONFIG SET maxmemory-policy {KEEPS_ALL}, and the same in its configuration file; or use another server for "
            "jobs than for caching.",
        )
    yield from _on_memory(facts, name)
    yield from _on_disk(facts, name)


def on_coverage(facts: Sequence[Facts]) -> Iterator[Finding]:
    """Slots of a cluster that nobody serves: as many as the node sees that misses most."""
    missing = max((one.uncovered for one in facts), default=0)
    if missing:
        yield Finding(
            Level.ERROR,
            "uncovered_slots",
            f"Nobody serves {missing:,} of the cluster's 16,384 slots: queues there take no jobs and run none, and perhaps no "
            "queue does.",
            "Start the node that is down, or let its replica take over; see CLUSTER NODES.",
        )


def on_hints(arrive: bool | None, address: Address) -> Iterator[Finding]:
    """Hints that were sent and did not come back."""
    if arrive is False:
        name = channel(address)
        yield Finding(
            Level.WARNING,
            "no_hints",
            f"Hints (PUBLISH on {name}) do not arrive: workers find new jobs by polling, up to a second late.",
            f"Let this user use the channel: acl setuser NAME &{name} +publish +subscribe.",
        )


def _on_memory(facts: Facts, name: str) -> Iterator[Finding]:
    if facts.limit and facts.used >= facts.limit * NEARLY_FULL:
        full = facts.used >= facts.limit
        yield Finding(
            Level.ERROR if full else Level.WARNING,
            "memory_full" if full else "memory_nearly_full",
            f"{name} uses {facts.used / 1024**2:,.0f} of {facts.limit / 1024**2:,.0f} MiB of memory: "
            + ("new jobs are refused." if full else "once it is full, new jobs are refused."),
            "Raise its maxmemory, keep ended jobs for a shorter time, or spread queues over a cluster.",
        )


def _on_disk(facts: Facts, name: str) -> Iterator[Finding]:
    if facts.write_failure:
        yield Finding(
            Level.ERROR,
            "cannot_write",
            f"{name} could not write {facts.write_failure} to its disk when it last tried.",
            "Free some space there, and see the server's log.",
        )
    if not facts.persists:
        yield Finding(
            Level.WARNING,
            "not_durable",
            f"{name} keeps nothing on its disk: with its process, every job is gone.",
            "CONFIG SET appendonly yes, and the same in its configuration file.",
        )
    elif not facts.logs_writes and facts.saves is None:
        yield Finding(
            Level.WARNING,
            "unknown_durability",
            f"{name} has no append-only file, and this user may not ask whether it writes snapshots: with its process, every job "
            "may be gone.",
            "Turn on an append-only file: CONFIG SET appendonly yes, and the same in its configuration file; or let this user "
            "ask: acl setuser NAME +config|get.",
        )
    elif not facts.logs_writes and facts.saves:
        yield Finding(
            Level.WARNING,
            "not_durable",
            f"{name} writes snapshots only: a crash loses what was acknowledged since the last one.",
            "CONFIG SET appendonly yes, and the same in its configuration file.",
        )
