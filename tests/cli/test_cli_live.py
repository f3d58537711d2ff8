"""What goes on until it is ended: `onejob dev`, which starts again after a change, and `onejob top`."""

from __future__ import annotations

import signal
import subprocess
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from queue import Queue

import pytest
from commands import PROGRAM, URL, Cli, Terminal, run
from shop import Shop

from onejob import App
from onejob.cli.dev import snapshot
from onejob.testing import drain

JOBS = """
import onejob
app = onejob.App("sqlite:///jobs.db")


@app.task(name="say")
def say() -> str:
    return "{}"
"""


class Talk:
    """What a process says on stderr, line by line."""

    def __init__(self, process: subprocess.Popen[str]) -> None:
        self._lines: Queue[str] = Queue()
        self.all: list[str] = []
        threading.Thread(target=self._read, args=(process,), daemon=True).start()

    def wait_for(self, text: str) -> str:
        while True:
            line = self._lines.get(timeout=60)
            assert line, f"ended without saying {text!r}: {self.all}"
            if text in line:
                return line

    def _read(self, process: subprocess.Popen[str]) -> None:
        assert process.stderr is not None
        for line in process.stderr:
            self.all.append(line)
            self._lines.put(line)
        self._lines.put("")


STUBBORN = """
import sys, time, onejob
app = onejob.App("sqlite:///jobs.db")


@app.task(name="say")
def say() -> None:
    print("it begins", file=sys.stderr, flush=True)
    time.sleep(600)
"""


@contextmanager
def dev(*arguments: str) -> Iterator[tuple[subprocess.Popen[str], Talk]]:
    command = [*PROGRAM, "dev", *arguments, "--every", "0.1"]
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True) as process:
        try:
            yield process, Talk(process)
        finally:
            if process.poll() is None:
                process.terminate()
            process.wait(60)


def said(app: App) -> str:
    return app.task_named("say").enqueue().result(timeout=60)


@pytest.fixture
def app() -> Iterator[App]:
    """An app on the same store that runs nothing itself."""
    made = App(URL)

    @made.task(name="say")
    def say() -> str:
        raise AssertionError("the worker's own is meant")

    yield made
    made.close()


def test_dev_runs_the_newest_code(folder: Path, app: App) -> None:
    file = folder / "dev_jobs.py"
    file.write_text(JOBS.format("one"))
    with dev("dev_jobs:app") as (process, talk):
        talk.wait_for("serving default")
        assert said(app) == "one"
        file.write_text(JOBS.format("number two"))
        talk.wait_for("dev_jobs.py changed, starting again")
        talk.wait_for("serving default")
        assert said(app) == "number two"
        process.send_signal(signal.SIGINT)
        assert process.wait(60) == 0
    assert "Traceback" not in "".join(talk.all)


def test_dev_waits_for_a_mistake_to_be_mended(folder: Path, app: App) -> None:
    file = folder / "dev_jobs.py"
    file.write_text("this is not Python\n")
    with dev("dev_jobs:app") as (process, talk):
        talk.wait_for("the worker has ended; waiting for a change")
        file.write_text(JOBS.format("mended"))
        talk.wait_for("serving default")
        assert said(app) == "mended"
        process.send_signal(signal.SIGTERM)
        assert process.wait(60) == 0


def test_dev_looks_at_python_files_below_the_current_directory(folder: Path) -> None:
    for name in ("a.py", "deep/er/b.py", "note.txt", ".hidden/c.py", "venv/d.py", "__pycache__/e.py"):
        file = folder / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text("")
    (folder / "venv/pyvenv.cfg").write_text("")
    assert set(snapshot(folder)) == {"a.py", "deep/er/b.py"}
    assert snapshot(folder / "nowhere") == {}


def test_top_without_a_terminal_looks_once(cli: Cli, shop: Shop) -> None:
    shop.failed(2)
    once = cli.at("top")
    assert once.code == 0
    assert ["jobs", "mail", "failed", "2"] in once.lines
    assert cli.at("top", "--json").json["queues"]["mail"]["counts"]["failed"] == 2
    assert run("top", "--url", URL).lines == once.lines


@pytest.mark.parametrize("key", ["q", "\x03"])
def test_top_goes_on_until_it_is_told_to_end(shop: Shop, key: str) -> None:
    receipt = shop.send.enqueue("u1")
    with Terminal("top", "--every", "0.1", "--url", URL) as terminal:
        terminal.read_until("default")
        terminal.read_until("jobs/s")
        shop.fail.enqueue(1)
        terminal.read_until("mail")
        if key == "q":
            terminal.type(key)
        else:
            terminal.process.send_signal(signal.SIGINT)
        code, seen = terminal.end()
    assert code == 0
    assert "Traceback" not in seen
    assert "\x1b[?1049l" in seen, "the screen is given back"
    assert receipt.id not in terminal.text, "it does not run"


def test_top_shows_what_runs(shop: Shop) -> None:
    import asyncio

    from onejob.core.job import WorkerId
    from onejob.store import Ask, Beat

    receipt = shop.send.enqueue("u1")

    async def start() -> None:
        await shop.app.store.beat(
            Beat(WorkerId("w1"), 30_000, queues=("default",), host="here", concurrency=2)
        )
        await shop.app.store.claim(Ask(WorkerId("w1"), ("default",), 1))

    asyncio.run(start())
    with Terminal("top", "--every", "0.1", "--url", URL) as terminal:
        terminal.read_until(receipt.id)
        terminal.read_until("w1")
        terminal.type("q")
        assert terminal.end()[0] == 0
    drain(shop.app)


def test_a_handler_that_ends_with_its_process_is_told_to_be_lost(app: App, folder: Path) -> None:
    (folder / "stubborn.py").write_text(STUBBORN)
    receipt = app.task_named("say").enqueue()
    command = [*PROGRAM, "worker", "stubborn:app", "--drain", "0", "--lease", "5"]
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True) as process:
        talk = Talk(process)
        talk.wait_for("it begins")
        process.terminate()
        assert "0 completed, 1 still at work, which cannot be stopped" in talk.wait_for("stopped: ")
        last = talk.wait_for("this process ends, and with it")
        assert f"job {receipt.id} (task say): lost, and to run again when the lease has ended, in 5 s" in last
        assert process.wait(60) == 0
