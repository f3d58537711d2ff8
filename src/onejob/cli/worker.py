"""`onejob worker`: runs the jobs of an app until SIGTERM or SIGINT, in one process or several."""

from __future__ import annotations

import asyncio
import gc
import logging
import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn

import click

from onejob.cli.rates import rate_option
from onejob.core.errors import OnejobError
from onejob.logs import event
from onejob.stores import MEMORY

if TYPE_CHECKING:
    from onejob.app import App
    from onejob.cli.health import HealthOptions
    from onejob.worker import Worker

BEAT = 1.0
"""Seconds between looks at the worker for its health file."""


@click.command(
    epilog="\b\nExample:\n  onejob worker jobs:app --queues mail,default --concurrency 50 --processes 4"
)
@click.argument("target", metavar="MODULE:APP", envvar="ONEJOB_APP")
@click.option("-q", "--queues", help="Queues to serve, in this order: a,b. [default: all that the app names]")
@click.option("-c", "--concurrency", default=10, show_default=True, help="Jobs at a time, per process.")
@click.option(
    "--stock",
    type=int,
    metavar="N",
    help="Jobs to claim ahead while they are quick, per process. [default: four times the concurrency, or 100]",
)
@rate_option("Start at most so many jobs, per process: 10/60s, 500/min, 5/1h.")
@click.option(
    "--children", type=int, help="Processes for tasks of process=True, per process. [default: one per core]"
)
@click.option(
    "--max-jobs-per-child",
    default=1000,
    show_default=True,
    help="Jobs after which such a process is replaced.",
)
@click.option(
    "--max-memory-per-child", type=int, metavar="MIB", help="Memory beyond which such a process is replaced."
)
@click.option("-p", "--processes", default=1, show_default=True, type=click.IntRange(1, 512))
@click.option("--lease", default=30.0, show_default=True, help="Seconds after which a silent worker is dead.")
@click.option(
    "--heartbeat", type=float, help="Seconds between signs of life. [default: a third of the lease]"
)
@click.option(
    "--drain", default=30.0, show_default=True, help="Seconds that running jobs may take at the end."
)
@click.option("--poll", default=5.0, show_default=True, help="Seconds between looks where no hint came.")
@click.option(
    "--health-port",
    default=0,
    type=click.IntRange(0, 65535),
    help="Answer GET /health on this port of 127.0.0.1: 200 or 503.",
)
@click.option(
    "--health-file",
    type=click.Path(path_type=Path, dir_okay=False),
    help="A file that is there, and newly written, while all is well.",
)
@click.option("--quiet", is_flag=True, help="Say nothing but errors.")
@click.option("-v", "--verbose", is_flag=True, help="Say how each job ended.")
@click.option("--lifeline", type=int, hidden=True, help="A pipe; when it closes, the supervisor is gone.")
def worker(
    target: str,
    *,
    processes: int,
    health_port: int,
    health_file: Path | None,
    lifeline: int | None,
    quiet: bool,
    verbose: bool,
    **settings: Any,
) -> None:
    """Run the jobs of an app: MODULE:APP, MODULE with one app in it, or FILE.py:APP.

    SIGTERM or Ctrl-C stops taking jobs and lets those under way end within --drain seconds; what is left
    is handed back. A second one hands back at once.
    """
    from onejob.cli.health import HealthOptions

    options = HealthOptions(health_port, health_file)
    if processes > 1:
        from onejob.cli.supervisor import Supervisor

        supervisor = Supervisor(_child_arguments(), processes, settings["drain"], quiet=quiet)
        sys.exit(supervisor.watched(options, patience=max(settings["lease"], BEAT * 3)))
    from onejob.cli.target import load_app

    app = load_app(target)
    _set_up_logging(quiet=quiet, verbose=verbose)
    if app.url in MEMORY:
        text = f"{app.url} lives in this process alone: no other program can give this worker jobs"
        event(logging.getLogger("onejob.worker"), logging.WARNING, "store.in_memory", text)
    # What is there by now stays: the collector need not look through it again each time, for some ten milliseconds.
    gc.collect()
    gc.freeze()
    _run(app, settings, lifeline, options)


def _child_arguments() -> list[str]:
    """Our own command line, for one process: the last option of a name wins."""
    return [*sys.argv[1:], "--processes", "1"]


def _run(app: App, settings: dict[str, Any], lifeline: int | None, options: HealthOptions) -> None:
    from onejob.cli.health import HealthCheck
    from onejob.loops import new_loop

    try:
        made = app.worker(**settings)
    except OnejobError as error:
        raise click.UsageError(str(error)) from error
    code = 0
    try:
        with asyncio.Runner(loop_factory=new_loop) as runner:
            with HealthCheck(options, lambda: made.health().as_data(), BEAT):
                runner.run(_serve(made, lifeline))
            code = 1 if made.unsettled else 0
            if made.held_up or made.unsettled:
                _end_now(made, code)
            runner.run(app.aclose())
    except KeyboardInterrupt:
        sys.exit(code)
    except OnejobError as error:
        raise click.ClickException(str(error)) from error
    if code:
        sys.exit(code)


async def _serve(made: Worker, lifeline: int | None) -> None:
    if lifeline is not None:
        asyncio.get_running_loop().add_reader(lifeline, _on_orphaned, made, lifeline)
    await made.run()


def _on_orphaned(made: Worker, lifeline: int) -> None:
    asyncio.get_running_loop().remove_reader(lifeline)
    made.stop()


def _end_now(made: Worker, code: int) -> NoReturn:
    """End the process with a handler still at work, a keeper that waits for somebody's database, or a store that does not answer.

    It cannot be stopped, and the loop and the interpreter would both wait for it. It ends with the process,
    now; a handler, while its lease still keeps others from starting the job.
    """
    if made.stuck:
        from onejob.worker.journal import say

        jobs = ", ".join(f"{attempt.claimed.id} (task {attempt.claimed.task})" for attempt in made.stuck)
        lease = made.settings.lease
        text = f"this process ends, and with it job {jobs}: lost, and to run again when the lease has ended, in {lease:g} s"
        say(logging.WARNING, "handler.lost", text, worker=made.id)
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)


def _set_up_logging(*, quiet: bool, verbose: bool) -> None:
    """Let the `onejob` logger speak on stderr, unless the app has set up logging itself."""
    logger = logging.getLogger("onejob")
    if logger.hasHandlers():
        return
    logger.setLevel(logging.ERROR if quiet else logging.DEBUG if verbose else logging.INFO)
    handler = logging.StreamHandler()
    handler.setFormatter(logging.Formatter("%(asctime)s %(levelname)s %(name)s: %(message)s"))
    logger.addHandler(handler)
