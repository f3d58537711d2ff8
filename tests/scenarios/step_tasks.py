"""An app whose steps run in processes of their own; test_continuations uses it as it is."""

from __future__ import annotations

import dataclasses
import os

from onejob import App, Lane, current_job

app = App("memory:")


@dataclasses.dataclass
class Part:
    number: int
    pid: int


@app.task(name="halve", process=True)
def halve(number: int, twice: bool = False) -> int:
    job = current_job()
    if number > 1:
        job.continue_with(halve.using(priority=3, lane=Lane("halves")), number // 2)
    if twice:
        job.continue_with(halve, 1)
    if number == 13:
        raise ValueError("unlucky")
    return number


@app.task(name="measure", process=True)
def measure(number: int) -> Part:
    return Part(number, os.getpid())


@app.task(name="total", process=True)
def total() -> list[object]:
    job = current_job()
    kinds = {type(blocker.output).__name__ for blocker in job.blockers if blocker.task != "local"}
    return [*sorted(kinds), *[_number(blocker.output) for blocker in job.blockers]]


@app.task(name="completes", process=True)
def completes() -> None:
    with current_job().complete():
        pass


def _number(output: object) -> object:
    return output.number if isinstance(output, Part) else len(output) if isinstance(output, str) else output
