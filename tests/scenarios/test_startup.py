"""What it costs to define tasks: a web application imports its tasks in every process, and may never enqueue."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

import pytest

from onejob import App

DEFINING = """
from onejob import App, Retry, Unique, current_job

app = App("sqlite:///never-opened.db", unique=Unique.once())

@app.before_enqueue
def look(call): ...

@app.task(unique=Unique(by="user"), retry=Retry(3))
def send(user: str, times: int = 1) -> None: ...
"""

NEEDED = "import inspect, threading, contextvars, msgspec"
"""What comes along in any case; what that brings with it differs between versions of Python."""

HEAVY = {
    *(
        "apsw",
        "asyncio",
        "click",
        "concurrent.futures",
        "dataclasses",
        "difflib",
        "hashlib",
        "json",
        "logging",
    ),
    *(
        "multiprocessing",
        "pathlib",
        "rich",
        "selectors",
        "socket",
        "sqlite3",
        "ssl",
        "subprocess",
        "tempfile",
    ),
    *("traceback", "urllib.parse", "onejob.background", "onejob.batcher", "onejob.client", "onejob.keepers"),
    *("onejob.logs", "onejob.stores.sqlite", "onejob.transactions", "onejob.worker"),
}


def test_defining_tasks_imports_nothing_that_it_does_not_need(tmp_path: Path) -> None:
    script = (
        f"import sys\n{NEEDED}\nknown = set(sys.modules)\n{DEFINING}\n"
        f"print(sorted({HEAVY!r} & sys.modules.keys() - known))"
    )
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, check=True, cwd=tmp_path
    )
    assert done.stdout.strip() == "[]"
    assert list(tmp_path.iterdir()) == []  # and no store is made


def test_defining_tasks_takes_no_more_than_eight_times_the_work_of_bare_python(tmp_path: Path) -> None:
    # With bytecode that is kept, as it is wherever nobody forbids it.
    environment = {**os.environ, "PYTHONPYCACHEPREFIX": str(tmp_path)}
    environment.pop("PYTHONDONTWRITEBYTECODE", None)
    _work(DEFINING, environment)
    # The least of several, each beside the other: what else goes on here only adds to it.
    pairs = [(_work("pass", environment), _work(DEFINING, environment)) for _ in range(7)]
    bare, defining = (min(pair[side] for pair in pairs) for side in (0, 1))
    assert defining < 8 * bare, f"{defining * 1000:.0f} ms beside {bare * 1000:.0f} ms of bare Python"


@pytest.fixture
def restless() -> Iterator[None]:
    """Threads take turns as often as they can."""
    usual = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    yield
    sys.setswitchinterval(usual)


@pytest.mark.usefixtures("restless")
def test_threads_that_use_an_app_for_the_first_time_at_once_share_one_store() -> None:
    for _ in range(200):
        app = App("memory:")
        found = _at_once(4, lambda app=app: app.store)
        assert {id(store) for store in found} == {id(app.store)}
        app.close()


def _at_once(number: int, use: Callable[[], object]) -> list[object]:
    """What as many threads get that all start at the same moment."""
    together = threading.Barrier(number)
    found: list[object] = []

    def run() -> None:
        together.wait()
        found.append(use())

    threads = [threading.Thread(target=run) for _ in range(number)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(found) == number
    return found


def _work(code: str, environment: Mapping[str, str]) -> float:
    """Seconds of processor time that a program takes, from its start to its end."""
    process = subprocess.Popen([sys.executable, "-c", code], env=dict(environment))
    _, status, used = os.wait4(process.pid, 0)
    process.returncode = os.waitstatus_to_exitcode(status)
    assert process.returncode == 0
    return used.ru_utime + used.ru_stime
