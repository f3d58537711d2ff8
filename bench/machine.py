"""The machine: waiting until it is idle, what it is, and what a process uses of it. Reads /proc."""

from __future__ import annotations

import os
import platform
import time
from importlib import metadata
from pathlib import Path

import apsw

PACKAGES = ("onejob", "apsw", "asyncpg", "libvalkey", "msgspec", "uvloop")
IDLE_ENOUGH = 0.88


class Idleness:
    """Waits for others to finish, but only for so long in all, so that a busy machine still gets its figures."""

    def __init__(self, patience: float, look: float = 0.4) -> None:
        """`look` is for how long it looks, at least, before each figure."""
        self._left, self._look = patience, look

    def wait(self) -> float:
        """Write out what is dirty, wait until the machine is idle, and return how idle it was at last."""
        os.sync()
        while True:
            started = time.monotonic()
            idle = _idle_share(self._look)
            if idle >= IDLE_ENOUGH or self._left <= 0:
                return idle
            self._left -= time.monotonic() - started


def describe(folder: Path) -> dict[str, str | int]:
    """What the figures depend on: machine, versions, and where the files lie."""
    return {
        "cpu": _field("/proc/cpuinfo", "model name") or platform.machine(),
        "cores": len(os.sched_getaffinity(0)),
        "memory": _field("/proc/meminfo", "MemTotal"),
        "system": platform.platform(),
        "file_system": _file_system(folder),
        "python": platform.python_version(),
        "sqlite": apsw.sqlite_lib_version(),
        **{name: version for name in PACKAGES if (version := _version(name))},
    }


def memory(pid: int) -> float:
    """The resident memory of a process in MB."""
    return int(_field(f"/proc/{pid}/status", "VmRSS").split()[0]) / 1000


def peak_memory(pid: int) -> float:
    """The most resident memory that a process has had, in MB."""
    return int(_field(f"/proc/{pid}/status", "VmHWM").split()[0]) / 1000


def processor_time(pid: int) -> float:
    """The seconds that all threads of a process have run so far, to the nanosecond."""
    threads = Path(f"/proc/{pid}/task").iterdir()
    return sum(int((thread / "schedstat").read_text().split()[0]) for thread in threads) / 1e9


def _idle_share(seconds: float) -> float:
    before = _ticks()
    time.sleep(seconds)
    after = _ticks()
    return (after[1] - before[1]) / max(1, after[0] - before[0])


def _ticks() -> tuple[int, int]:
    with Path("/proc/stat").open() as file:
        ticks = [int(field) for field in file.readline().split()[1:]]
    return sum(ticks), ticks[3] + ticks[4]


def _field(path: str, name: str) -> str:
    for line in Path(path).read_text().splitlines():
        key, _, value = line.partition(":")
        if key.strip() == name:
            return value.strip()
    return ""


def _file_system(folder: Path) -> str:
    best, kind = "", "unknown"
    for line in Path("/proc/self/mounts").read_text().splitlines():
        _, where, this, *_ = line.split(" ")
        if folder.is_relative_to(where) and len(where) >= len(best):
            best, kind = where, this
    return kind


def _version(package: str) -> str | None:
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return None
