"""`onejob demo` as people meet it: without a terminal it proves what it shows; at a terminal it heeds keys."""

from __future__ import annotations

import os
import pty
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from onejob.cli.demo import _remove_leftovers  # pyright: ignore[reportPrivateUsage]

DEMO = [sys.executable, "-c", "from onejob.cli import main; main()", "demo"]
PATIENCE = 50.0


@pytest.fixture
def env(tmp_path: Path) -> dict[str, str]:
    (tmp_path / "tmp").mkdir()
    return {**os.environ, "TMPDIR": str(tmp_path / "tmp"), "TERM": "xterm-256color"}


def left_behind(env: dict[str, str]) -> list[str]:
    """Folders and worker processes of a demo that has ended; theirs name its folder in their environment."""
    folder = env["TMPDIR"]
    found = [str(path) for path in Path(folder).glob("onejob-demo-*")]
    for process in Path("/proc").glob("[0-9]*/environ"):
        try:
            if f"sqlite:///{folder}".encode() in process.read_bytes():
                found.append(str(process))
        except OSError:  # it is ending, or not ours
            continue
    return found


def test_without_a_terminal_it_proves_in_plain_lines_what_it_shows(env: dict[str, str]) -> None:
    ended = subprocess.run(DEMO, capture_output=True, text=True, env=env, timeout=PATIENCE, check=False)
    assert ended.returncode == 0, ended.stdout + ended.stderr
    assert ended.stderr == ""
    assert "\x1b" not in ended.stdout
    lost = re.search(r"job (\S+) starts on worker (\d): maintenance", ended.stdout)
    assert lost is not None
    id, worker = lost.groups()
    assert re.search(rf"SIGKILL: worker {worker} \(pid \d+\) is dead", ended.stdout)
    assert re.search(rf'asked again: kept: key "tonight" is held by {id}', ended.stdout)
    assert re.search(r"asked (\d+) times while its worker was dead, \1 kept", ended.stdout)
    resumed = re.search(r"resumed by worker (\d): attempt 2, 1 crash counted, 0 retries", ended.stdout)
    assert resumed is not None
    assert resumed[1] != worker
    made = re.search(r"ok  (\d+) calls made (\d+) jobs; (\d+) were absorbed", ended.stdout)
    assert made is not None
    calls, jobs, absorbed = map(int, made.groups())
    assert calls == jobs + absorbed
    assert absorbed > calls / 2
    assert f"ok  {jobs} effects for {jobs} jobs" in ended.stdout
    assert ended.stdout.count("\n  ok  ") == 6
    assert re.search(r"a report is split into 60 parts; job \S+ waits for all", ended.stdout)
    assert "ok  60 parts of a report were counted, each once" in ended.stdout
    assert "It holds." in ended.stdout
    assert left_behind(env) == []


def test_the_code_it_prints_runs_as_it_stands_and_uses_the_public_names_only(tmp_path: Path) -> None:
    code = subprocess.run(
        [*DEMO, "--code"], capture_output=True, text=True, timeout=PATIENCE, check=True
    ).stdout
    assert re.findall(r"^(?:from|import) onejob.*$", code, re.MULTILINE) == [
        "import onejob",
        "from onejob import App, Unique",
    ]
    (tmp_path / "demo_app.py").write_text(code)
    env = {name: value for name, value in os.environ.items() if name != "ONEJOB_URL"}
    ended = subprocess.run(
        [sys.executable, "demo_app.py"],
        cwd=tmp_path,
        env=env,
        capture_output=True,
        text=True,
        timeout=PATIENCE,
        check=False,
    )
    assert ended.returncode == 0, ended.stderr
    assert ended.stdout.count('kept: key "ada"') == 2
    assert "the parts add up to 45" in ended.stdout


@pytest.mark.parametrize(("key", "code"), [(b"q", 0), (b"\x03", 130)])
def test_at_a_terminal_a_key_ends_it_and_nothing_is_left_behind(
    env: dict[str, str], key: bytes, code: int
) -> None:
    pid, terminal = pty.fork()
    if pid == 0:
        os.execve(DEMO[0], DEMO, env)
    shown = b""
    try:
        deadline = time.monotonic() + PATIENCE
        while b"k kills its worker" not in shown:
            assert time.monotonic() < deadline, shown
            shown += os.read(terminal, 65536)
        os.write(terminal, key)
        try:
            while part := os.read(terminal, 65536):
                shown += part
        except OSError:  # how Linux says that nobody is at the other end any more
            pass
        _, status = os.waitpid(pid, 0)
        pid = 0
    finally:
        if pid:
            os.kill(pid, signal.SIGKILL)
            os.waitpid(pid, 0)
        os.close(terminal)
    assert os.waitstatus_to_exitcode(status) == code, shown[-2000:]
    assert b"Traceback" not in shown
    assert left_behind(env) == []


def test_what_a_killed_demo_left_is_removed_by_the_next(tmp_path: Path) -> None:
    killed, new, other = (tmp_path / name for name in ("onejob-demo-1", "onejob-demo-2", "other"))
    for folder in (killed, new, other):
        folder.mkdir()
        (folder / "demo.db").write_bytes(b"")
    for folder in (killed, other):
        os.utime(folder, (0, 0))
    _remove_leftovers(tmp_path)
    assert {path.name for path in tmp_path.iterdir()} == {"onejob-demo-2", "other"}
