"""Real worker processes, real signals, a real store: what must survive when a worker is killed, stopped, frozen
or blocked. Each test gives the workers time; none depends on how much of it they take.
"""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import psycopg
import pytest
from stored import is_postgres, is_valkey, with_patience

from onejob.app import App
from onejob.core.errors import StoreBusy
from onejob.core.job import Job, JobId, State
from onejob.tasks import Task

PATIENCE = 40.0
SEED = int(os.environ.get("ONEJOB_SEED", "20261115"))
KILLS, LONG = 12, 200
KEYS = 40

MAKES_APP = "App()"
MODULE = f"""
import asyncio, ctypes, os, time
from pathlib import Path
from onejob.app import App
from onejob.core.dedup import Unique
from onejob.current import current_job

app = {MAKES_APP}
FIRST = os.environ.get("FIRST") == "1"   # the worker that gets into trouble; the other one finishes its jobs

@app.task(name="effect", unique=Unique.in_flight(by="key"), max_crashes=1000)
async def effect(key: int, number: int) -> None:
    await asyncio.sleep(0.01 * (number))
    with open("effects", "ab", buffering=0) as effects:   # one write, which no kill can tear
        effects.write(current_job().idempotency_key.encode() + b"\\n")

@app.task(name="nap")
async def nap(seconds: float) -> str:
    Path("nap-started").touch()
    await asyncio.sleep(seconds)
    return "rested"

@app.task(name="zombie")
async def zombie() -> str:
    if not FIRST:
        return "second"
    while not current_job().aborted:
        try:
            await asyncio.sleep(0.05)
        except asyncio.CancelledError:
            pass
    current_job().progress("written by a zombie")
    return "first"

@app.task(name="blocks-the-loop")
async def blocks_the_loop() -> str:
    time.sleep(3)
    return "first" if FIRST else "second"

@app.task(name="holds-the-gil")
async def holds_the_gil() -> str:
    if not FIRST:
        return "second"
    await app.store.open()          # a pass through the writer: it is between two transactions now
    ctypes.PyDLL(None).sleep(5)     # unlike CDLL, keeps the GIL
    return "first"

@app.task(name="thread")
def thread() -> None:
    Path("thread-started").touch()
    time.sleep(60)
"""


class Place:
    """A folder with an app in it, and the worker processes started there."""

    def __init__(self, folder: Path, url: str) -> None:
        self.folder = folder
        (folder / "jobs.py").write_text(MODULE)
        self.app = App(with_patience(url))
        self.env = {**os.environ, "ONEJOB_URL": self.app.url}
        self.workers: list[subprocess.Popen[bytes]] = []

    def tasks(self) -> Mapping[str, Task[..., Any]]:
        """The tasks of the module, on an app of this process."""
        if not self.app.tasks:
            exec(MODULE.replace(MAKES_APP, "APP"), {"APP": self.app})
        return self.app.tasks

    def send(self, task: str, *args: Any) -> JobId:
        return self.tasks()[task].enqueue(*args).id

    def start(self, *options: str, first: bool = False, own_group: bool = False) -> subprocess.Popen[bytes]:
        """Start a worker process."""
        number = len(self.workers)
        with (self.folder / f"{number}.log").open("wb") as log:
            worker = subprocess.Popen(
                [sys.executable, "-c", "from onejob.cli import main; main()", "worker", "jobs:app", *options],
                cwd=self.folder,
                env={**self.env, "FIRST": "1" if first else "0"},
                stderr=log,
                stdout=log,
                start_new_session=own_group,
            )
        self.workers.append(worker)
        return worker

    def log(self, worker: subprocess.Popen[bytes]) -> str:
        return (self.folder / f"{self.workers.index(worker)}.log").read_text()

    def until(self, condition: Callable[[], object]) -> None:
        deadline = time.monotonic() + PATIENCE
        while not condition():
            assert time.monotonic() < deadline, "it never happened:\n" + "\n".join(
                map(self.log, self.workers)
            )
            time.sleep(0.01)

    def job(self, id: JobId) -> Job:
        job = self.app.job(id)
        assert job is not None
        return job

    def running(self, id: JobId) -> None:
        self.until(lambda: self.job(id).state is State.RUNNING)

    def ended(self, id: JobId) -> Job:
        self.until(lambda: self.job(id).state.ended)
        return self.job(id)

    def freeze(self, worker: subprocess.Popen[bytes]) -> None:
        """Stop a process, but not in the middle of a transaction: that would lock what others need."""
        while True:
            worker.send_signal(signal.SIGSTOP)
            if self._is_free():
                return
            worker.send_signal(signal.SIGCONT)

    def _is_free(self) -> bool:
        if is_postgres(self.app.url):
            return self._no_transaction_waits()
        return is_valkey(self.app.url) or self._the_file_is_free()

    def _the_file_is_free(self) -> bool:
        with App(f"sqlite:///{self.folder}/jobs.db?patience=0.2") as probe:
            try:
                probe.client.call(probe.store.open(), instead="")
            except StoreBusy:
                return False
        return True

    def _no_transaction_waits(self) -> bool:
        with psycopg.connect(self.app.url.partition("?")[0], autocommit=True) as connection:
            return not connection.execute(
                "select from pg_stat_activity where usename = current_user and state like 'idle in transaction%'"
            ).fetchall()

    def stop(self, worker: subprocess.Popen[bytes]) -> int:
        worker.send_signal(signal.SIGTERM)
        return worker.wait(PATIENCE)

    def clean_up(self) -> None:
        for worker in self.workers:
            if worker.poll() is None:
                worker.kill()
                worker.wait()
        self.app.close()


@pytest.fixture
def place(tmp_path: Path, store_url: str) -> Iterator[Place]:
    place = Place(tmp_path, store_url)
    yield place
    place.clean_up()


@pytest.fixture
def plain_place(tmp_path: Path, sqlite_url: str) -> Iterator[Place]:
    """For what has nothing to do with the store."""
    place = Place(tmp_path, sqlite_url)
    yield place
    place.clean_up()


SHORT = ("--lease", "1", "--poll", "0.5")


class Nursery:
    """A process that has everything imported and forks a worker when asked: a birth costs no second of imports."""

    SOURCE = """
import asyncio, os, signal, sys
import onejob.stores.postgres.store, onejob.stores.sqlite.store, onejob.stores.valkey.store, onejob.worker
from jobs import app

signal.signal(signal.SIGCHLD, signal.SIG_IGN)
born = []
for line in sys.stdin:
    pid = os.fork()
    if pid == 0:
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        asyncio.run(app.worker(lease=2, poll=0.5).run())
        os._exit(0)
    born.append(pid)
    print(pid, flush=True)
for pid in born:
    try:
        os.kill(pid, signal.SIGKILL)
    except ProcessLookupError:
        pass
"""

    def __init__(self, place: Place) -> None:
        (place.folder / "nursery.py").write_text(self.SOURCE)
        self._log = place.folder / "nursery.log"
        with self._log.open("wb") as log:
            self._process = subprocess.Popen(
                [sys.executable, "nursery.py"],
                cwd=place.folder,
                env=place.env,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=log,
                text=True,
            )

    def __enter__(self) -> Nursery:
        return self

    def __exit__(self, *error: object) -> None:
        self._process.communicate(timeout=PATIENCE)

    def bear(self) -> int:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        print("one more", file=self._process.stdin, flush=True)
        return int(self._process.stdout.readline())

    def log(self) -> str:
        return self._log.read_text()


@pytest.mark.parametrize("kills", [KILLS, pytest.param(LONG, marks=pytest.mark.torture)])
def test_workers_killed_at_random_moments_lose_no_job_and_leave_no_key(place: Place, kills: int) -> None:
    chance = random.Random(SEED)
    effect = place.tasks()["effect"]
    accepted: set[JobId] = set()
    with Nursery(place) as nursery:
        doom = {nursery.bear(): 0.0 for _ in range(4)}
        killed = 0
        while killed < kills or not any(place.job(id).crashes for id in accepted):
            longest = 4 if killed < kills else 60  # so long that a kill must hit a run, if none has
            calls = [effect.job(chance.randrange(KEYS), chance.randrange(longest)) for _ in range(4)]
            accepted.update(receipt.id for receipt in place.app.enqueue_many(calls))
            time.sleep(0.01)
            at_work = {worker.pid for worker in place.app.client.call(place.app.store.workers(), instead="")}
            for pid, due in list(doom.items()):
                assert alive(pid), nursery.log()
                if due == 0.0 and pid not in at_work:
                    continue
                if due == 0.0:
                    doom[pid] = time.monotonic() + chance.uniform(0, 0.6)
                elif time.monotonic() >= due:
                    os.kill(pid, signal.SIGKILL)
                    killed += 1
                    del doom[pid]
                    doom[nursery.bear()] = 0.0
        place.until(lambda: not live(place))
        jobs = {id: place.job(id) for id in accepted}
        runs = Counter((place.folder / "effects").read_text().split())
        again = place.app.enqueue_many([effect.job(key, 0) for key in range(KEYS)])
        for pid in doom:
            os.kill(pid, signal.SIGTERM)
        place.until(lambda: not any(map(alive, doom)))

    assert {job.state for job in jobs.values()} == {State.COMPLETED}
    assert set(runs) == accepted
    # Every run but the last of a job ended in a kill, before its effect or after.
    assert all(1 <= runs[id] <= job.crashes + 1 for id, job in jobs.items())
    assert {receipt.outcome for receipt in again} == {"created"}, "a key is stuck"


def alive(pid: int) -> bool:
    return Path(f"/proc/{pid}").exists()


def live(place: Place) -> int:
    counts = place.app.counts()
    return sum(number for states in counts.values() for state, number in states.items() if not state.ended)


def test_one_sigterm_lets_the_running_job_end_and_takes_no_other(place: Place) -> None:
    worker = place.start("--concurrency", "1")
    first = place.send("nap", 0.5)
    place.until((place.folder / "nap-started").exists)
    second = place.send("nap", 0.0)
    assert place.stop(worker) == 0
    done, waiting = place.job(first), place.job(second)
    assert (done.state, done.result, done.attempt) == (State.COMPLETED, b'"rested"', 1)
    assert (waiting.state, waiting.attempt) == (State.WAITING, 0)
    assert "stopped: 1 completed" in place.log(worker)


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_second_signal_hands_back_at_once_and_charges_nothing(place: Place, number: signal.Signals) -> None:
    worker = place.start("--drain", "600")
    id = place.send("nap", 600.0)
    place.until((place.folder / "nap-started").exists)  # one that has not begun is handed back at the first
    worker.send_signal(number)
    time.sleep(0.1)
    assert worker.poll() is None
    worker.send_signal(number)
    assert worker.wait(PATIENCE) == 0, place.log(worker)
    job = place.job(id)
    assert (job.state, job.attempt, job.failures, job.crashes) == (State.WAITING, 0, 0, 0)


def test_a_job_that_outlives_the_drain_time_is_handed_back(place: Place) -> None:
    worker = place.start("--drain", "0.2")
    id = place.send("nap", 600.0)
    place.running(id)
    assert place.stop(worker) == 0
    assert (place.job(id).state, place.job(id).attempt) == (State.WAITING, 0)


def test_a_thread_that_cannot_be_stopped_ends_with_its_process_and_runs_again_later(place: Place) -> None:
    worker = place.start("--drain", "0", "--lease", "1")
    id = place.send("thread")
    place.until((place.folder / "thread-started").exists)
    assert place.stop(worker) == 0
    assert place.job(id).state is State.RUNNING, "its lease must outlast the process"
    (place.folder / "thread-started").unlink()
    place.start("--lease", "1")
    place.until((place.folder / "thread-started").exists)
    assert (place.job(id).attempt, place.job(id).crashes) == (2, 1)


def test_a_frozen_worker_loses_its_job_and_every_write_of_it_is_refused(place: Place) -> None:
    frozen = place.start(*SHORT, first=True)
    id = place.send("zombie")
    place.running(id)
    place.freeze(frozen)
    other = place.start(*SHORT)
    done = place.ended(id)
    frozen.send_signal(signal.SIGCONT)
    place.until(lambda: "its outcome (complete) was refused" in place.log(frozen))
    assert place.stop(frozen) == 0
    assert place.stop(other) == 0
    job = place.job(id)
    assert (job.state, job.result, job.attempt, job.crashes) == (State.COMPLETED, b'"second"', 2, 1)
    assert job == done, "the zombie changed something"
    assert "1 lost" in place.log(frozen)


def test_a_blocked_event_loop_keeps_its_lease_and_is_named(place: Place) -> None:
    blocked = place.start(*SHORT, first=True)
    id = place.send("blocks-the-loop")
    place.running(id)
    place.start(*SHORT)
    job = place.ended(id)
    assert (job.state, job.result, job.attempt, job.crashes) == (State.COMPLETED, b'"first"', 1, 0)
    place.until(lambda: f"by task blocks-the-loop (job {id})" in place.log(blocked))


def test_a_held_gil_loses_the_lease_and_is_fenced(place: Place) -> None:
    holding = place.start(*SHORT, first=True)
    id = place.send("holds-the-gil")
    place.running(id)
    place.start(*SHORT)
    done = place.ended(id)
    assert (done.result, done.attempt, done.crashes) == (b'"second"', 2, 1)
    place.until(lambda: "was refused" in place.log(holding))
    assert place.job(id) == done
    assert place.stop(holding) == 0


def test_a_supervisor_restarts_a_killed_worker_and_stops_all_together(place: Place) -> None:
    supervisor = place.start("--processes", "2", "--lease", "1")
    place.until(lambda: place.log(supervisor).count(" serving ") == 2)
    victim = children(supervisor.pid)[0]
    os.kill(victim, signal.SIGKILL)
    place.until(lambda: place.log(supervisor).count(" serving ") == 3)
    id = place.send("nap", 0.3)
    place.running(id)
    assert place.stop(supervisor) == 0, place.log(supervisor)
    assert place.job(id).state is State.COMPLETED
    assert "was killed by SIGKILL; starting another" in place.log(supervisor)


STOPS_AT = """
import sys, time
from onejob.cli import main
class Slow:
    slow = sys.argv[1]
    def find_spec(self, name, *_):
        if name == self.slow:
            print("now", flush=True)
            time.sleep(60)
sys.meta_path.insert(0, Slow())
sys.argv = ["onejob", "worker", "jobs:app"]
main()
"""


@pytest.mark.parametrize(
    "module",
    ["onejob.cli.program", "onejob.cli.worker", "onejob.app", "jobs", "onejob.worker", "onejob.loops"],
)
def test_ctrl_c_ends_a_worker_that_is_still_starting_as_one_that_serves(
    plain_place: Place, module: str
) -> None:
    worker = subprocess.Popen(
        [sys.executable, "-c", STOPS_AT, module],
        cwd=plain_place.folder,
        env={**os.environ, **plain_place.env},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    with worker:
        assert worker.stdout is not None
        assert worker.stdout.readline() == "now\n"
        worker.send_signal(signal.SIGINT)
        _, talk = worker.communicate(timeout=PATIENCE)
    assert (worker.returncode, talk) == (0, "\n")


@pytest.mark.parametrize("moment", [0.0, 0.05, 0.1, 0.2, 0.4, 0.7, 1.0, 1.5])
def test_ctrl_c_ends_a_supervisor_whose_workers_are_still_starting(plain_place: Place, moment: float) -> None:
    supervisor = plain_place.start("--processes", "2", own_group=True)
    plain_place.until(lambda: " keeps 2 workers" in plain_place.log(supervisor))
    time.sleep(moment)
    os.killpg(supervisor.pid, signal.SIGINT)
    assert supervisor.wait(PATIENCE) == 0, plain_place.log(supervisor)
    assert "Traceback" not in plain_place.log(supervisor)
    assert "supervisor" in plain_place.log(supervisor).splitlines()[-1]


@pytest.mark.parametrize("moment", [0.0, 0.1, 0.3, 0.8])
def test_ctrl_c_ends_a_supervisor_that_replaces_a_worker(plain_place: Place, moment: float) -> None:
    supervisor = plain_place.start("--processes", "2", own_group=True)
    log = plain_place.log
    plain_place.until(lambda: log(supervisor).count(" serving ") == 2)
    victim = children(supervisor.pid)[0]
    os.kill(victim, signal.SIGKILL)
    plain_place.until(lambda: len(set(children(supervisor.pid)) - {victim}) == 2)
    time.sleep(moment)
    os.killpg(supervisor.pid, signal.SIGINT)
    assert supervisor.wait(PATIENCE) == 0, log(supervisor)
    assert "Traceback" not in log(supervisor)


def test_workers_stop_when_their_supervisor_is_killed(place: Place) -> None:
    supervisor = place.start("--processes", "2")
    place.until(lambda: place.log(supervisor).count(" serving ") == 2)
    supervisor.kill()
    supervisor.wait()
    place.until(lambda: place.log(supervisor).count(" stopped: ") == 2)


@pytest.mark.parametrize(
    ("target", "message"),
    [
        ("job:app", "There is no module 'job' here or among the installed ones. Did you mean 'jobs'?"),
        ("jobs:ap", "jobs has no 'ap'. Did you mean 'app'?"),
        ("jobs:nap", "jobs:nap is not an App but of type AsyncTask. Did you mean 'app'?"),
        ("job.py:app", "There is no file 'job.py'. Did you mean 'jobs.py'?"),
        ("broken", "The module 'broken' cannot be imported: ZeroDivisionError: division by zero"),
    ],
)
def test_a_wrong_target_is_a_usage_error_with_a_near_match(
    plain_place: Place, target: str, message: str
) -> None:
    (plain_place.folder / "broken.py").write_text("1 / 0")
    done = command(plain_place, target)
    assert done.returncode == 2
    assert message in " ".join(done.stderr.split())


def test_a_module_that_cannot_be_imported_is_shown_from_its_own_first_line(plain_place: Place) -> None:
    (plain_place.folder / "broken.py").write_text("1 / 0")
    first, second, *_ = command(plain_place, "broken").stderr.splitlines()
    assert first == "Traceback (most recent call last):"
    assert second.startswith(f'  File "{plain_place.folder / "broken.py"}", line 1')
    (plain_place.folder / "broken.py").write_text("def = 1")
    assert "importlib" not in command(plain_place, "broken").stderr


def test_a_worker_takes_its_app_from_the_environment(
    plain_place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("ONEJOB_APP", "jobs:nowhere")
    done = command(plain_place)
    assert done.returncode == 2
    assert "jobs has no 'nowhere'" in done.stderr


def test_a_worker_on_a_store_in_memory_is_warned(plain_place: Place) -> None:
    plain_place.env["ONEJOB_URL"] = "memory:"
    worker = plain_place.start()
    plain_place.until(lambda: " serving " in plain_place.log(worker))
    assert plain_place.stop(worker) == 0
    assert "memory: lives in this process alone" in plain_place.log(worker)


def test_wrong_settings_are_a_usage_error_under_a_supervisor_too(plain_place: Place) -> None:
    for more in ([], ["--processes", "2"]):
        done = command(plain_place, "jobs", "--concurrency", "0", *more)
        assert done.returncode == 2, done.stderr
        assert "concurrency must be a whole number from 1 to 10000, not 0" in done.stderr


def command(place: Place, *arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-c", "from onejob.cli import main; main()", "worker", *arguments],
        cwd=place.folder,
        env={**place.env, **os.environ},
        capture_output=True,
        text=True,
        timeout=PATIENCE,
        check=False,
    )


def children(pid: int) -> list[int]:
    return [int(child) for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]
