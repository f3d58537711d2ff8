"""The health check: what a worker says of itself, over HTTP and as a file, also while its loop is blocked."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import click
import pytest
from stored import with_patience

from onejob import App
from onejob.cli.health import MAX_CONNECTIONS, MAX_REQUEST, HealthCheck, HealthOptions, children_report
from onejob.testing import FakeClock

PATIENCE = 30.0
WELL = {"alive": True, "running": 2}


def until(condition: Callable[[], object]) -> None:
    deadline = time.monotonic() + PATIENCE
    while not condition():
        assert time.monotonic() < deadline, "it never happened"
        time.sleep(0.01)


@pytest.fixture
def port() -> int:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        return free.getsockname()[1]


def ask(port: int, request: bytes = b"GET /health HTTP/1.1\r\nHost: x\r\n\r\n") -> tuple[int, Any]:
    with socket.create_connection(("127.0.0.1", port), timeout=PATIENCE) as connection:
        connection.sendall(request)
        answer = b""
        with contextlib.suppress(ConnectionResetError):
            while part := connection.recv(65536):
                answer += part
    head, _, body = answer.partition(b"\r\n\r\n")
    return int(head.split(b" ")[1]), json.loads(body) if body else None


class TestOverHttp:
    def test_well_is_200_and_unwell_503_with_the_report(self, port: int) -> None:
        report: dict[str, Any] = dict(WELL)
        with HealthCheck(HealthOptions(port), lambda: report, 1):
            assert ask(port) == (200, WELL)
            report["alive"] = False
            assert ask(port) == (503, {"alive": False, "running": 2})
            assert ask(port, b"HEAD /health HTTP/1.0\r\n\r\n") == (503, None)
        with pytest.raises(ConnectionRefusedError):
            ask(port)

    @pytest.mark.parametrize(
        ("request_", "status"),
        [
            (b"GET / HTTP/1.1\r\n\r\n", 404),
            (b"GET /health/../etc/passwd HTTP/1.1\r\n\r\n", 404),
            (b"POST /health HTTP/1.1\r\n\r\n", 405),
            (b"\x16\x03\x01\r\n\r\n", 400),
            (b"GET /health HTTP/1.1\r\n" + b"a: b\r\n" * MAX_REQUEST, 431),
        ],
    )
    def test_nothing_else_is_served(self, port: int, request_: bytes, status: int) -> None:
        with HealthCheck(HealthOptions(port), lambda: WELL, 1):
            assert ask(port, request_)[0] == status
            assert ask(port) == (200, WELL)

    def test_who_asks_slowly_or_goes_away_or_comes_in_crowds_is_no_trouble(
        self, port: int, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr("onejob.cli.health.PATIENCE", 0.3)
        with HealthCheck(HealthOptions(port), lambda: WELL, 1), contextlib.ExitStack() as crowd:
            for _ in range(MAX_CONNECTIONS + 5):
                idle = crowd.enter_context(socket.create_connection(("127.0.0.1", port)))
                idle.sendall(b"GET /hea")
            until(lambda: _answers(port))

    def test_a_port_that_is_taken_is_said_in_words(self, port: int) -> None:
        second = HealthCheck(HealthOptions(port), lambda: WELL, 1)
        said = pytest.raises(click.ClickException, match=f"127.0.0.1:{port}.*another number")
        with HealthCheck(HealthOptions(port), lambda: WELL, 1), said, second:
            raise AssertionError("it has begun")


def _answers(port: int) -> bool:
    try:
        return ask(port)[0] == 200
    except (OSError, IndexError):  # too many at once: closed without an answer
        return False


class TestAsAFile:
    def test_it_is_there_while_all_is_well_and_gone_otherwise(self, tmp_path: Path) -> None:
        report: dict[str, Any] = dict(WELL)
        file = tmp_path / "health"
        with HealthCheck(HealthOptions(file=file), lambda: report, 0.02):
            until(file.exists)
            assert json.loads(file.read_text()) == WELL
            written = file.stat().st_mtime_ns
            until(lambda: file.stat().st_mtime_ns > written)
            report["alive"] = False
            until(lambda: not file.exists())
            report["alive"] = True
            until(file.exists)
        assert list(tmp_path.iterdir()) == []

    def test_trouble_with_it_is_logged_once(self, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
        looks = 0

        def look() -> dict[str, Any]:
            nonlocal looks
            looks += 1
            return WELL

        folder = tmp_path / "folder"
        folder.mkdir()
        with HealthCheck(HealthOptions(file=folder / "health"), look, 0.01):
            shutil.rmtree(folder)
            until(lambda: looks > 3)
        assert [record.event for record in caplog.records] == ["health.trouble"]

    def test_a_supervisor_is_well_while_one_of_its_workers_is(self, tmp_path: Path) -> None:
        files = [tmp_path / "0", tmp_path / "1"]
        assert children_report(files, 5) == {"alive": False, "processes": [None, None]}
        files[1].write_text(json.dumps(WELL))
        assert children_report(files, 5) == {"alive": True, "processes": [None, WELL]}
        os.utime(files[1], (time.time() - 60,) * 2)
        assert children_report(files, 5)["alive"] is False


async def test_a_worker_knows_how_it_is(store_url: str) -> None:
    app = App(store_url)
    async with app:
        worker = app.worker(queues="a,b")
        assert worker.health().as_data() == {
            "alive": False,
            "worker": worker.id,
            "phase": "starting",
            "fresh": False,
            "beat_age": None,
            "running": 0,
            "queues": ("a", "b"),
        }
        async with worker:
            health = worker.health()
            assert health.alive
            assert health.beat_age is not None
            assert 0 <= health.beat_age < PATIENCE
        assert (worker.health().phase, worker.health().alive) == ("stopped", False)


def test_the_fake_clock_of_an_app_does_not_matter_to_health() -> None:
    app = App("memory:", clock=FakeClock())
    assert app.worker().health().beat_age is None
    app.close()


JOBS = """
import asyncio, time
from pathlib import Path
from onejob import App
app = App()

@app.task(name="block")
async def block() -> None:
    while not Path("unblock").exists():
        time.sleep(0.01)
    while not Path("end").exists():  # still under way once the loop hears of its end
        await asyncio.sleep(0.01)
"""


@pytest.fixture
def start(tmp_path: Path, store_url: str) -> Iterator[Callable[..., subprocess.Popen[bytes]]]:
    (tmp_path / "jobs.py").write_text(JOBS)
    started: list[subprocess.Popen[bytes]] = []

    def start(*options: str) -> subprocess.Popen[bytes]:
        worker = subprocess.Popen(
            [sys.executable, "-c", "from onejob.cli import main; main()", "worker", "jobs:app", *options],
            cwd=tmp_path,
            env={**os.environ, "ONEJOB_URL": with_patience(store_url)},
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        started.append(worker)
        return worker

    yield start
    for worker in started:
        worker.kill()
        worker.wait()


def test_a_worker_process_answers_while_a_handler_blocks_its_loop_and_says_so_when_it_drains(
    tmp_path: Path, store_url: str, port: int, start: Callable[..., subprocess.Popen[bytes]]
) -> None:
    worker = start("--health-port", str(port), "--health-file", "health")
    until(lambda: _answers(port))
    until((tmp_path / "health").exists)
    app = App(store_url)
    app.task(name="block")(lambda: None).enqueue()
    app.close()
    until(lambda: ask(port)[1]["running"] == 1)
    assert ask(port)[0] == 200
    worker.send_signal(signal.SIGTERM)
    (tmp_path / "unblock").touch()
    until(lambda: ask(port)[0] == 503)
    assert ask(port)[1]["phase"] == "draining"
    (tmp_path / "end").touch()
    assert worker.wait(PATIENCE) == 0
    assert not (tmp_path / "health").exists()


@pytest.mark.parametrize("store_url", ["sqlite"], indirect=True)  # it has no store of its own
def test_the_supervisor_answers_for_all_its_processes(
    tmp_path: Path, port: int, start: Callable[..., subprocess.Popen[bytes]]
) -> None:
    supervisor = start("--processes", "2", "--health-port", str(port), "--health-file", "health")
    until(lambda: _answers(port) and all(ask(port)[1]["processes"]))
    until((tmp_path / "health").exists)
    supervisor.send_signal(signal.SIGTERM)
    assert supervisor.wait(PATIENCE) == 0
    assert not (tmp_path / "health").exists()


def test_a_port_in_use_and_a_file_that_cannot_be_written_are_refused_at_the_start(tmp_path: Path) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        number = taken.getsockname()[1]
        busy = HealthCheck(HealthOptions(number), dict, 1.0)
        with pytest.raises(
            click.ClickException, match=rf"127.0.0.1:{number}: Address already in use; give --he"
        ):
            busy.__enter__()
    for file in (tmp_path / "nowhere" / "health", Path("/proc/health")):
        with pytest.raises(
            click.ClickException, match=f"{file} cannot be written: No such file or directory"
        ):
            HealthCheck(HealthOptions(0, file), dict, 1.0).__enter__()
    assert list(tmp_path.iterdir()) == []
