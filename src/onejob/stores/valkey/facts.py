"""What servers say of themselves, as facts; and which of them a store refuses to start on. Nothing is changed by asking."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

import msgspec

from onejob.core.errors import OnejobError
from onejob.stores.valkey.address import Address
from onejob.stores.valkey.client import Client
from onejob.stores.valkey.failures import ServerError

OLDEST: Final = (7, 0)
"""From here on scripts may say in their first line what they do. Tested on Valkey 9; expected to work on 8, and on Redis 7."""
KEEPS_ALL: Final = "noeviction"


class Facts(msgspec.Struct, frozen=True, kw_only=True):
    """One server, or one primary of a cluster."""

    node: str
    """Its address in the cluster; empty if it is the only one."""
    server: str
    """Such as `Valkey 9.1.2`."""
    version: tuple[int, ...]
    run_id: str
    """Made anew with each start."""
    in_cluster: bool
    policy: str
    """What it does when its memory is full."""
    used: int
    limit: int
    """Bytes of memory it may use; 0: as many as there are."""
    logs_writes: bool
    """It has an append-only file."""
    saves: bool | None
    """It writes snapshots by itself; None: that may not be known."""
    write_failure: str = ""
    """What it could not write to its disk when it last tried."""
    uncovered: int = 0
    """Slots of the cluster that nobody serves."""

    @property
    def persists(self) -> bool:
        """True unless everything is known to go with the process."""
        return self.logs_writes or self.saves is not False


async def gather(client: Client) -> list[Facts]:
    """Ask every primary."""
    # Each section by itself: all in one call is more than servers before 7 understand, who should be told what they are.
    sections = [
        await client.ask_everyone(("INFO", section))
        for section in ("server", "memory", "persistence", "cluster")
    ]
    saves = await _everyone_if_allowed(client, "CONFIG", "GET", "save")
    coverage = await _everyone_if_allowed(client, "CLUSTER", "INFO")
    return [
        _facts(
            node,
            {name: value for section in sections for name, value in parse(section.get(node, b"")).items()},
            _setting(saves.get(node)),
            parse(coverage.get(node, b"")),
        )
        for node in sections[0]
    ]


def parse(info: bytes | str) -> dict[str, str]:
    """`name:value` lines as a mapping."""
    text = info.decode(errors="replace") if isinstance(info, bytes) else info
    pairs = (line.partition(":") for line in text.splitlines() if ":" in line)
    return {name: value.strip() for name, _, value in pairs}


def refusal(facts: Facts, address: Address) -> OnejobError | None:
    """Why no store is to start on this server; None if it may."""
    where = f"{facts.server} at {facts.node or address.place}"
    if facts.version < OLDEST:
        return OnejobError(f"{where} is older than onejob works with: upgrade it to Valkey 8 or later.")
    if facts.in_cluster and not address.cluster:
        return OnejobError(
            f"{where} is a node of a cluster: start the store's URL with valkey+cluster://, or valkeys+cluster:// for TLS."
        )
    if facts.policy not in ("", KEEPS_ALL):
        return OnejobError(
            f"{where} throws keys away when its memory is full (maxmemory-policy {facts.policy}), and with them jobs that "
            f"were acknowledged. Set it to {KEEPS_ALL}: CONFIG SET maxmemory-policy {KEEPS_ALL}, and the same in its "
            "configuration file; or use another server for jobs than for caching."
        )
    return None


def forgetful(facts: Sequence[Facts]) -> list[str]:
    """The servers that lose everything with their process."""
    return [one.node for one in facts if not one.persists]


def _facts(node: str, info: dict[str, str], save: str | None, coverage: dict[str, str]) -> Facts:
    valkey = info.get("valkey_version")
    version = valkey or info.get("redis_version", "0")
    return Facts(
        node=node,
        server=f"{'Valkey' if valkey else 'Redis'} {version}",
        version=tuple(int(part) for part in version.split(".")[:2] if part.isdecimal()),
        run_id=info.get("run_id", ""),
        in_cluster=info.get("cluster_enabled") == "1",
        policy=info.get("maxmemory_policy", ""),
        used=_number(info, "used_memory"),
        limit=_number(info, "maxmemory"),
        logs_writes=info.get("aof_enabled") == "1",
        saves=None if save is None else bool(save),
        write_failure=_write_failure(info),
        uncovered=_uncovered(coverage),
    )


def _write_failure(info: dict[str, str]) -> str:
    if info.get("aof_enabled") == "1" and info.get("aof_last_write_status", "ok") != "ok":
        return "its append-only file"
    return "a snapshot" if info.get("rdb_last_bgsave_status", "ok") != "ok" else ""


def _uncovered(coverage: dict[str, str]) -> int:
    return 16_384 - _number(coverage, "cluster_slots_ok") if "cluster_slots_ok" in coverage else 0


def _number(info: dict[str, str], name: str) -> int:
    text = info.get(name, "")
    return int(text) if text.isdecimal() else 0


def _setting(answer: Any) -> str | None:
    """The value of the one setting that was asked for; None if we may not know."""
    return answer[1].decode(errors="replace") if answer else None


async def _everyone_if_allowed(client: Client, *command: str) -> dict[str, Any]:
    """What many services forbid; nothing if this one does."""
    try:
        return await client.ask_everyone(command)
    except ServerError as error:
        if error.code not in ("ERR", "NOPERM"):
            raise
        return {}
