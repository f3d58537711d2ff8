"""huey on SQLite, with the settings that serve it best: one thread, no results, no periodic tasks."""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Callable
from pathlib import Path

from bench.peers import Environment, installed
from bench.working import stop, until

NAME = "huey"
REQUIREMENT = "huey>=3.5,<4"
WITH_FSYNC = "huey, fsync"
WITHOUT_FSYNC = "huey, no fsync"
_COUNTS = {WITH_FSYNC: 3_000, WITHOUT_FSYNC: 10_000}


def environment() -> Environment:
    """Where huey is installed; raises `PeerMissing`."""
    return installed(NAME, REQUIREMENT)


def one_by_one(home: Environment, who: str) -> Callable[[Path], float]:
    """Jobs per second of one thread that calls the task."""
    return lambda folder: _fill(home, folder, who)[0]


def drain(home: Environment, who: str) -> Callable[[Path], float]:
    """Jobs per second from the first start to the last one."""
    return lambda folder: _drain(home, folder, who)


def _fill(home: Environment, folder: Path, who: str) -> tuple[float, dict[str, str]]:
    """Fill the queue; returns how fast, and what the consumer needs around it."""
    settings = {
        "BENCH_FILE": str(folder / "huey.db"),
        "BENCH_FSYNC": "1" if who == WITH_FSYNC else "",
        "BENCH_COUNT": str(_COUNTS[who]),
        "BENCH_ANSWER": str(folder / "rate.json"),
        "PYTHONPATH": str(Path(__file__).parent / "apps"),
    }
    surroundings = {**os.environ, **settings}
    done = subprocess.run(
        [home.program("python"), "-m", "huey_app"],
        env=surroundings,
        check=True,
        stdout=subprocess.PIPE,
        text=True,
    )
    return json.loads(done.stdout), surroundings


def _drain(home: Environment, folder: Path, who: str) -> float:
    answer = folder / "rate.json"
    _, surroundings = _fill(home, folder, who)
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
