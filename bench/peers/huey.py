"""huey on SQLite, with the settings that serve it best: one thread, no results, no periodic tasks."""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Callable
from pathlib import Path

from bench.peers import Environment, installed
from bench.working import stop, until

REQUIREMENT = "huey>=3.5,<4"
WITH_FSYNC = "huey, fsync"
WITHOUT_FSYNC = "huey, no fsync"
_COUNTS = {WITH_FSYNC: 3_000, WITHOUT_FSYNC: 10_000}


def environment() -> Environment:
    """Where huey is installed; raises `PeerMissing`."""
    return installed("huey", REQUIREMENT)


def drain(home: Environment, who: str) -> Callable[[Path], float]:
    """Jobs per second from the first start to the last one."""
    return lambda folder: _drain(home, folder, _COUNTS[who], fsync=who == WITH_FSYNC)


def _drain(home: Environment, folder: Path, count: int, *, fsync: bool) -> float:
    answer = folder / "rate.json"
    settings = {
        "BENCH_FILE": str(folder / "huey.db"),
        "BENCH_FSYNC": "1" if fsync else "",
        "BENCH_COUNT": str(count),
        "BENCH_ANSWER": str(answer),
        "PYTHONPATH": str(Path(__file__).parent / "apps"),
    }
    surroundings = {**os.environ, **settings}
    subprocess.run([home.program("python"), "-m", "huey_app"], env=surroundings, check=True)
    consumer = home.program("huey_consumer")
    if not Path(consumer).exists():
        consumer = home.program("huey_consumer.py")
    options = ["-w", "1", "-k", "thread", "-n", "-q", "-d", "0.01", "-m", "0.1"]
    process = subprocess.Popen(
        [home.program("python"), consumer, "huey_app.huey", *options],
        env=surroundings,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    try:
        until(answer.exists, "huey to drain its queue")
    finally:
        stop(process)
    return json.loads(answer.read_text())
