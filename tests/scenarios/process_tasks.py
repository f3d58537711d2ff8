"""Functions for processes of their own; test_processes makes tasks of them. What they leave behind is in files."""

from __future__ import annotations

import ctypes
import logging
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

from onejob import Fail, Snooze, current_job

changed_in_the_worker = False
hoard: list[bytes] = []


class Impatient(Exception):
    retry_after = 0.25


class Unprintable(Exception):
    def __str__(self) -> str:
        raise RuntimeError("no")


def polite(failures: int, error: BaseException) -> float:
    """A retry curve that looks at the error itself."""
    return getattr(error, "retry_after", 500.0)


def square(number: int) -> dict[str, int]:
    return {"square": number * number, "pid": os.getpid()}


def state_of_module() -> list[object]:
    return [changed_in_the_worker, Path(sys.argv[0]).name, os.getppid()]


def raises(kind: str) -> None:
    match kind:
        case "value":
            raise ValueError("no such \x1b order")
        case "impatient":
            raise Impatient("later")
        case "unprintable":
            raise Unprintable
        case "exit":
            sys.exit(3)
        case "interrupt":
            raise KeyboardInterrupt
        case "fail":
            raise Fail("never mind")
        case "snooze":
            raise Snooze(3600)


def about_me() -> dict[str, object]:
    job = current_job()
    job.logger.warning("hello from %s", job.task, extra={"colour": "blue"})
    logging.getLogger("somebody.else").error("and hello from a stranger")
    return {
        "id": job.id,
        "attempt": job.attempt,
        "key": job.key,
        "idempotency_key": job.idempotency_key,
        "aborted": bool(job.aborted),
    }


def reports(go_on: str) -> None:
    for done in range(2_000):
        current_job().progress({"done": done})
    wait_for(Path(go_on))


def waits_to_be_told(place: str) -> str:
    Path(place).touch()
    assert current_job().aborted.wait(30)
    Path(f"{place}-told").write_text(str(current_job().aborted.reason))
    return "told"


def never_ends(place: str, how: str) -> None:
    """One that only a signal ends, or not even that."""
    if how == "deaf":
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
    Path(place).write_text(str(os.getpid()))
    try:
        while True:
            if how == "holds the gil":
                ctypes.PyDLL(None).sleep(60)
            elif how == "sleeps":
                time.sleep(60)
            elif how == "swallows":
                try:
                    time.sleep(60)
                except BaseException:
                    continue
    finally:
        Path(f"{place}-cleaned-up").touch()


def dies(how: str) -> None:
    match how:
        case "exit":
            os._exit(7)
        case "exit with 0":
            os._exit(0)
        case "SIGKILL":
            os.kill(os.getpid(), signal.SIGKILL)
        case "SIGSEGV":
            ctypes.string_at(0)


def dies_once(place: str) -> int:
    if not Path(place).exists():
        Path(place).touch()
        os._exit(1)
    return current_job().attempt


def holds_the_gil_a_second() -> list[float]:
    begun = time.time()
    ctypes.PyDLL(None).sleep(1)
    return [begun, time.time()]


def hoards(megabytes: int) -> int:
    hoard.append(b"x" * megabytes * 1024 * 1024)
    return os.getpid()


def returns(what: str) -> object:
    match what:
        case "object":
            return object()
        case "function":
            return returns
        case "too much":
            return "x" * 2_000_000
        case "cycle":
            cycle: list[object] = []
            cycle.append(cycle)
            return cycle
        case _:
            return {"large": "x" * 900_000}


def babbles() -> None:
    """Write what is no message wherever a message might be expected."""
    for number in range(3, 256):
        try:
            os.write(number, b"\xff" * 64)
        except OSError:
            pass
    time.sleep(30)


def forks(place: str) -> int:
    """Come out of the handler twice."""
    if os.fork() == 0:
        Path(place).touch()
        return 2
    wait_for(Path(place))
    return 1


def starts_another(place: str) -> None:
    other = subprocess.Popen(["sleep", "300"])
    Path(place).write_text(str(other.pid))
    time.sleep(300)


def wait_for(path: Path) -> None:
    deadline = time.monotonic() + 30
    while not path.exists():
        assert time.monotonic() < deadline, f"there is no {path}"
        time.sleep(0.01)
