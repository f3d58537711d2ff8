"""`onejob demo`: a storm of duplicates on a temporary store, a worker killed in mid-job, and the proof."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import shutil
import signal
import sys
import tempfile
import time
from importlib import resources
from pathlib import Path
from typing import TYPE_CHECKING

import click

if TYPE_CHECKING:
    from rich.console import Console

    from onejob.cli.demo_crew import Crew
    from onejob.cli.demo_proof import Claim

WORKERS = 3
PREFIX = "onejob-demo-"
LONG_OVER = 600.0
"""Seconds after which a demo has ended, one way or another."""


@click.command(epilog="\b\nExample:\n  onejob demo")
@click.option("--code", is_flag=True, help="Print the demo's app, and end.")
def demo(code: bool) -> None:
    """Watch duplicates being absorbed, on a temporary store.

    Worker processes drain a storm of events. Press k to kill the worker that runs the longest job, or wait
    until it happens by itself. It ends within a minute, with a proof; q quits before.
    """
    if code:
        click.echo(resources.files("onejob.cli").joinpath("demo_app.py").read_text("utf-8"), nl=False)
        return
    logging.getLogger("onejob").addHandler(logging.NullHandler())  # the stage is ours alone
    _remove_leftovers(Path(tempfile.gettempdir()))
    with tempfile.TemporaryDirectory(prefix=PREFIX, ignore_cleanup_errors=True) as folder:
        os.environ["ONEJOB_URL"] = f"sqlite:///{Path(folder) / 'demo.db'}?patience=20"
        sys.exit(_perform(Path(folder)))


def _remove_leftovers(place: Path) -> None:
    """Remove what demos that were killed could not."""
    for folder in place.glob(f"{PREFIX}*"):
        with contextlib.suppress(OSError):
            about = folder.lstat()
            if about.st_uid == os.getuid() and about.st_mtime < time.time() - LONG_OVER:
                shutil.rmtree(folder, ignore_errors=True)


def _perform(folder: Path) -> int:
    from rich.console import Console

    from onejob.cli.demo_crew import Crew

    console = Console()
    with Crew(WORKERS, folder / "workers.log") as crew:
        try:
            claims = asyncio.run(_play(crew, console))
        except TimeoutError:
            return _failed(crew, "The demo did not end in time; is this machine very busy?")
        except click.ClickException as error:
            return _failed(crew, f"The demo could not go on: {error.message}.")
        if isinstance(claims, int):
            return claims
        from onejob.cli.demo_stage import tell_proof

        return 0 if tell_proof(claims, console) else _failed(crew, "What the workers said last:")


async def _play(crew: Crew, console: Console) -> list[Claim] | int:
    """The proof, or the exit code of who left before it."""
    from onejob.cli.demo_app import app
    from onejob.cli.demo_show import QUICK, SLOW, Show
    from onejob.cli.demo_stage import Lines, Screen, hears_keys, keys_heard

    loop = asyncio.get_running_loop()
    left: asyncio.Future[int] = loop.create_future()

    def leave(code: int) -> None:
        if not left.done():
            left.set_result(code)

    for number in (signal.SIGTERM, signal.SIGHUP):
        loop.add_signal_handler(number, leave, 128 + number)
    live = console.is_terminal and not console.is_dumb_terminal
    stage = Screen(console) if live else Lines()
    show = Show(app, crew, stage, SLOW if live else QUICK)

    def on_key(key: str) -> None:
        if key in "kK":
            show.kill_asked.set()
        elif key in "qQ":
            leave(0)

    async with app:
        with contextlib.ExitStack() as stack:
            if isinstance(stage, Screen):
                stack.enter_context(stage)
            else:
                print(f"onejob demo: {WORKERS} worker processes on a temporary store", flush=True)
            if live and hears_keys():
                stack.enter_context(keys_heard(on_key, loop.add_reader))
            playing = asyncio.create_task(show.run())
            try:
                await asyncio.wait({playing, left}, return_when=asyncio.FIRST_COMPLETED)
            finally:
                if not playing.done():
                    playing.cancel()
                    await asyncio.wait({playing})
            if left.done():
                return left.result()
        claims = playing.result()
        stage.end(show.picture)
        return claims


def _failed(crew: Crew, why: str) -> int:
    click.echo(why, err=True)
    for line in crew.said():
        click.echo(f"  {line}", err=True)
    return 1
