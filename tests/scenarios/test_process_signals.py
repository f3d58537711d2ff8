"""Worker processes with processes of their own, under real signals; and scripts that are their own worker."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from stored import with_patience

from onejob import App
from onejob.core.job import Job, JobId, State

PATIENCE = 60.0

MODULE = """
import ctypes, os, subprocess, sys, time
from pathlib import Path
from onejob import App, current_job

app = App()

@app.task(name="naps", process=True)
def naps(seconds: float) -> int:
    Path("started").write_text(str(os.getpid()))
    time.sleep(seconds)
    Path("finished").touch()
    return os.getpid()

@app.task(name="holds", process=True)
def holds() -> None:
    other = subprocess.Popen(["sleep", "300"])
    Path("other").write_text(str(other.pid))
    Path("started").write_text(str(os.getpid()))
    ctypes.PyDLL(None).sleep(300)

@app.task(name="asks", process=True)
def asks() -> str:
    return naps.enqueue(0.0).id

@app.task(name="prints", process=True)
def prints(lines: int) -> int:
    for number in range(lines):
        print("x" * 1000)
        print("y" * 1000, file=sys.stderr)
    current_job().logger.info("printed all")
    return lines
"""


class Place:
    """A folder with an app in it, and the worker processes started there."""

    def __init__(self, folder: Path, url: str) -> None:
        self.folder = folder
        (folder / "jobs.py").write_text(MODULE)
        self.app = App(with_patience(url))
        self.env = {**os.environ, "ONEJOB_URL": self.app.url}
        self.workers: list[subprocess.Popen[bytes]] = []

        @self.app.task(name="naps")
        def naps(seconds: float) -> int:
            raise AssertionError

        @self.app.task(name="holds")
        def holds() -> None:
            raise AssertionError

        @self.app.task(name="asks")
        def asks() -> str:
            raise AssertionError

        @self.app.task(name="prints")
        def prints(lines: int) -> int:
            raise AssertionError

    def send(self, task: str, *arguments: object) -> JobId:
        return self.app.task_named(task).enqueue(*arguments).id

    def start(self, *options: str) -> subprocess.Popen[bytes]:
        with (self.folder / "log").open("ab") as log:
            worker = subprocess.Popen(
                [sys.executable, "-c", "from onejob.cli import main; main()", "worker", "jobs:app", *options],
                cwd=self.folder,
                env=self.env,
                stderr=log,
                stdout=log,
                start_new_session=True,
            )
        self.workers.append(worker)
        return worker

    def script(self, text: str) -> subprocess.CompletedProcess[str]:
        """Run a script in the folder to its end."""
        (self.folder / "script.py").write_text(text)
        return self.python("script.py")

    def python(self, *arguments: str, stdin: str = "") -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [sys.executable, *arguments],
            cwd=self.folder,
            env=self.env,
            input=stdin,
            capture_output=True,
            text=True,
            timeout=PATIENCE,
            check=False,
        )

    def log(self) -> str:
        return (self.folder / "log").read_text()

    def until(self, condition: Callable[[], object]) -> None:
        deadline = time.monotonic() + PATIENCE
        while not condition():
            assert time.monotonic() < deadline, f"it never happened:\n{self.log()}"
            time.sleep(0.01)

    def pid(self, name: str = "started") -> int:
        file = self.folder / name
        self.until(lambda: file.exists() and file.read_text())
        return int(file.read_text())

    def job(self, id: JobId) -> Job:
        job = self.app.job(id)
        assert job is not None
        return job

    def ended(self, id: JobId) -> Job:
        self.until(lambda: self.job(id).state.ended)
        return self.job(id)

    def clean_up(self) -> None:
        for worker in self.workers:
            if worker.poll() is None:
                worker.kill()
                worker.wait()
        self.app.close()


@pytest.fixture
def place(tmp_path: Path, sqlite_url: str) -> Iterator[Place]:
    place = Place(tmp_path, sqlite_url)
    yield place
    place.clean_up()


@pytest.fixture
def any_place(tmp_path: Path, store_url: str) -> Iterator[Place]:
    """For what the processes do to the store, or their end leaves there."""
    place = Place(tmp_path, store_url)
    yield place
    place.clean_up()


def is_gone(pid: int) -> bool:
    try:
        return "\nState:\tZ" in Path(f"/proc/{pid}/status").read_text()
    except FileNotFoundError:
        return True


def test_after_sigterm_a_process_may_finish(place: Place) -> None:
    worker = place.start()
    id = place.send("naps", 2)
    child = place.pid()
    worker.send_signal(signal.SIGTERM)
    assert worker.wait(PATIENCE) == 0
    assert place.job(id).state is State.COMPLETED
    place.until(lambda: is_gone(child))


def test_a_sigterm_to_every_process_at_once_lets_the_job_finish(place: Place) -> None:
    # As a service manager does that stops a whole group.
    worker = place.start()
    id = place.send("naps", 2)
    child = place.pid()
    os.kill(child, signal.SIGTERM)
    worker.send_signal(signal.SIGTERM)
    assert worker.wait(PATIENCE) == 0
    job = place.job(id)
    assert (job.state, job.attempt, job.crashes) == (State.COMPLETED, 1, 0)


def test_a_ctrl_c_at_the_terminal_is_for_the_worker(place: Place) -> None:
    worker = place.start()
    id = place.send("naps", 2)
    child = place.pid()
    os.killpg(worker.pid, signal.SIGINT)
    os.kill(child, signal.SIGINT)
    assert worker.wait(PATIENCE) == 0
    assert place.job(id).state is State.COMPLETED


def test_a_second_sigterm_kills_the_process_and_hands_the_job_back(any_place: Place) -> None:
    worker = any_place.start()
    id = any_place.send("holds")
    child, other = any_place.pid(), any_place.pid("other")
    worker.send_signal(signal.SIGTERM)
    time.sleep(0.3)  # two signals at the same instant may be one
    worker.send_signal(signal.SIGTERM)
    assert worker.wait(PATIENCE) == 0
    job = any_place.job(id)
    assert (job.state, job.attempt, job.failures, job.crashes) == (State.WAITING, 0, 0, 0)
    assert is_gone(child)
    any_place.until(lambda: is_gone(other))


def test_a_killed_worker_takes_its_processes_with_it_even_one_that_holds_its_gil(any_place: Place) -> None:
    worker = any_place.start("--lease", "3", "--poll", "0.5")
    id = any_place.send("holds")
    child, other = any_place.pid(), any_place.pid("other")
    worker.kill()
    worker.wait()
    any_place.until(lambda: is_gone(child) and is_gone(other))
    (any_place.folder / "started").unlink()
    any_place.start("--lease", "3", "--poll", "0.5")
    assert any_place.pid() != child  # another worker runs it again
    assert any_place.job(id).crashes == 1


def test_an_idle_process_ends_with_a_killed_worker(place: Place) -> None:
    worker = place.start()
    id = place.send("naps", 0)
    place.ended(id)
    child = place.pid()
    assert not is_gone(child)
    worker.kill()
    worker.wait()
    place.until(lambda: is_gone(child))


def test_a_job_in_a_process_may_enqueue_another(any_place: Place) -> None:
    worker = any_place.start()
    asked = any_place.ended(any_place.send("asks"))
    assert asked.state is State.COMPLETED, asked.error
    assert any_place.ended(JobId((asked.result or b"").decode().strip('"'))).state is State.COMPLETED
    began = time.monotonic()
    worker.send_signal(signal.SIGTERM)
    assert worker.wait(PATIENCE) == 0
    assert time.monotonic() - began < PATIENCE / 2


def test_much_output_stands_in_nobodys_way(place: Place) -> None:
    worker = place.start("--children", "2")
    ids = [place.send("prints", 10_000) for _ in range(2)]
    assert [place.ended(id).state for id in ids] == [State.COMPLETED] * 2
    worker.send_signal(signal.SIGTERM)
    assert worker.wait(PATIENCE) == 0
    log = place.log()
    assert log.count("x" * 1000) == 20_000
    assert log.count("printed all") == 2


SCRIPT = """
import asyncio, os, sys
from onejob import App

app = App("memory:")

@app.task(process=True)
def double(number: int) -> list:
    return [number * 2, __name__, os.getpid() == PID]

PID = os.getpid()

async def main() -> None:
    async with app.worker():
        print(await (await double.aenqueue(21)).aresult(timeout=50))

if __name__ == "__main__":
    asyncio.run(main())
"""


def test_a_script_may_be_its_own_worker(place: Place) -> None:
    ran = place.script(SCRIPT)
    # PID is read anew in the process: the script runs there again, without its last lines.
    assert ran.stdout == "[42, '__mp_main__', True]\n", ran.stderr


def test_a_module_run_by_name_may_be_its_own_worker(place: Place) -> None:
    (place.folder / "package").mkdir()
    (place.folder / "package" / "__init__.py").touch()
    (place.folder / "package" / "part.py").write_text("FACTOR = 2\n")
    text = SCRIPT.replace("from onejob import App", "from onejob import App\nfrom .part import FACTOR")
    (place.folder / "package" / "work.py").write_text(text.replace("number * 2", "number * FACTOR"))
    ran = place.python("-m", "package.work")
    assert ran.stdout == "[42, '__mp_main__', True]\n", ran.stderr


def test_a_script_that_starts_its_worker_unguarded_is_told_so(place: Place) -> None:
    ran = place.script(SCRIPT.replace('if __name__ == "__main__":', "if True:"))
    assert ran.returncode == 1
    assert "WrongCall: This process runs jobs of a worker and only imports its script" in ran.stderr
    assert "task script.double cannot be imported by its process" in ran.stderr


@pytest.mark.parametrize("way", ["typed", "piped", "-c"])
def test_a_task_that_no_process_can_find_is_refused_where_it_is_defined(place: Place, way: str) -> None:
    lines = (
        "from onejob import App\napp = App('memory:')\n@app.task(name='x', process=True)\ndef x(): ...\n\n"
    )
    match way:
        case "typed":
            ran = place.python("-i", "-q", stdin=lines)
        case "piped":
            ran = place.python(stdin=lines)
        case _:
            ran = place.python("-c", lines)
    assert "was typed into a shell or a notebook, where another process cannot find it" in ran.stderr
