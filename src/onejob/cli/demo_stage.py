"""How `onejob demo` looks: a live table on a terminal, plain lines anywhere else."""

from __future__ import annotations

import os
import sys
import termios
import textwrap
import tty
from collections.abc import Callable, Generator
from contextlib import contextmanager
from types import TracebackType
from typing import Self

from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.table import Table
from rich.text import Text

from onejob.cli.demo_proof import Claim
from onejob.cli.demo_show import Picture
from onejob.cli.demo_storm import KINDS

WIDE = 110
"""Columns from which there is room for the policies."""
ROOMY = 18
"""Lines from which there is room for gaps."""
LINE_EVERY = 2.0
"""Seconds between lines about the storm where there is no terminal."""


class Lines:
    """Plain lines, for pipes, files and logs."""

    def __init__(self) -> None:
        self._said = 0.0

    def show(self, picture: Picture) -> None:
        """Say now and then how the storm goes on."""
        if picture.seconds - self._said >= LINE_EVERY and picture.tally.asked:
            self._said = picture.seconds
            ran = sum(picture.ran(kind.queue) for kind in KINDS)
            asked, absorbed = picture.tally.asked.total(), picture.tally.absorbed.total()
            self.tell(picture.seconds, f"{asked} asked, {absorbed} absorbed, {ran} ran")

    def tell(self, seconds: float, line: str) -> None:
        """One line per event."""
        print(f"{seconds:5.1f} s  {line}", flush=True)

    def end(self, picture: Picture) -> None:
        """The table, as text."""
        print(f"\n{'':20} {'asked':>6} {'absorbed':>9} {'ran':>5}  why")
        for kind in KINDS:
            asked, absorbed = picture.tally.asked[kind.queue], picture.tally.absorbed_by(kind.queue)
            why = picture.tally.why(kind)
            print(f"{kind.title:20} {asked:6} {absorbed:9} {picture.ran(kind.queue):5}  {why}")


class Screen:
    """A terminal: the whole of it while the show goes on, and a summary that stays."""

    def __init__(self, console: Console) -> None:
        self._console = console
        self._live = Live(console=console, screen=True, auto_refresh=False, redirect_stdout=False)

    def __enter__(self) -> Self:
        self._live.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._live.stop()

    def show(self, picture: Picture) -> None:
        """Draw the picture."""
        width, height = self._console.size
        gap: list[RenderableType] = [Text()] if height >= ROOMY else []
        above = [_title(picture), *gap, _table(picture, width), *gap, _workers(picture), *gap]
        # What is not story: heading, kinds and sum; title, workers and hint; the gaps.
        room = max(height - (len(KINDS) + 2) - 3 - 3 * len(gap), 0)
        story = _story(picture, width)[-room:] if room else []
        story += [Text()] * (room - len(story))
        self._live.update(Group(*above, *story, _hint(picture)), refresh=True)

    def tell(self, seconds: float, line: str) -> None:
        """It is in the picture."""

    def end(self, picture: Picture) -> None:
        """Leave table and story on the terminal."""
        width = self._console.width
        self._console.print(
            _title(picture), Text(), _table(picture, width), Text(), *_story(picture, width), sep="\n"
        )


def tell_proof(claims: list[Claim], console: Console) -> bool:
    """Print the proof line by line; True if all of it holds."""
    console.print("\nThe proof, counted in the demo's own table:", highlight=False)
    for claim in claims:
        mark, style = ("ok", "green") if claim.holds else ("NO", "bold red")
        width = console.width - 6 if console.is_terminal else sys.maxsize
        head, *more = textwrap.wrap(claim.text, max(width, 20))
        console.print(Text(f"  {mark}  ", style), head, sep="", highlight=False, soft_wrap=True)
        for line in more:
            console.print(f"      {line}", highlight=False)
    holds = all(claim.holds for claim in claims)
    told = "It holds. The app behind it: onejob demo --code" if holds else "It does NOT hold."
    console.print(Text(f"\n{told}", "bold" if holds else "bold red"))
    return holds


@contextmanager
def keys_heard(on_key: Callable[[str], None], listen: Callable[..., None]) -> Generator[None]:
    """Hear single keys while the block lasts; `listen(fd, callback)` is the event loop's `add_reader`."""
    fd = sys.stdin.fileno()
    before = termios.tcgetattr(fd)
    tty.setcbreak(fd)
    try:
        listen(fd, lambda: on_key(os.read(fd, 1).decode(errors="replace")))
        yield
    finally:
        termios.tcsetattr(fd, termios.TCSAFLUSH, before)


def hears_keys() -> bool:
    """True if somebody at a terminal can press one: in the background, asking would stop us."""
    try:
        return sys.stdin.isatty() and os.tcgetpgrp(sys.stdin.fileno()) == os.getpgrp()
    except (OSError, ValueError):
        return False


def _title(picture: Picture) -> Text:
    title = Text.assemble(
        ("onejob demo", "bold"), f" · {len(picture.crew.pids)} worker processes on a temporary store"
    )
    return Text.assemble(title, (f" · {picture.seconds:.0f} s", "dim"))


def _table(picture: Picture, width: int) -> Table:
    tally = picture.tally
    table = Table(box=None, padding=(0, 2, 0, 0), pad_edge=False, header_style="dim")
    table.add_column("what happens", no_wrap=True, min_width=max(len(kind.title) for kind in KINDS))
    for heading in ("asked", "absorbed", "ran", "live"):
        table.add_column(heading, justify="right", no_wrap=True, min_width=len(heading))
    table.add_column("why", no_wrap=True, overflow="ellipsis")
    if width >= WIDE:
        table.add_column("policy", no_wrap=True, style="dim")
    for kind in KINDS:
        numbers = tally.asked[kind.queue], tally.absorbed_by(kind.queue), picture.ran(kind.queue)
        live = picture.live(kind.queue)
        row = [kind.title, *map(str, numbers), str(live or ""), tally.why(kind)]
        table.add_row(*row, *([kind.policy] if width >= WIDE else []))
    ran = sum(picture.ran(kind.queue) for kind in KINDS)
    live = sum(picture.live(kind.queue) for kind in KINDS)
    numbers = tally.asked.total(), tally.absorbed.total(), ran, live or ""
    table.add_row("together", *map(str, numbers), style="bold")
    return table


def _workers(picture: Picture) -> Text:
    text = Text.assemble(("workers", "dim"), no_wrap=True, overflow="ellipsis")
    for number, pid in enumerate(picture.crew.pids, 1):
        dead = pid in picture.killed
        text.append(f"   {number} ", "bold").append(
            f"pid {pid} {'killed' if dead else 'works'}", "red" if dead else "green"
        )
    return text


def _story(picture: Picture, width: int) -> list[Text]:
    lines: list[Text] = []
    for seconds, told in picture.story:
        head, *more = textwrap.wrap(told, max(width - 9, 20))
        style = "red" if told.startswith("SIGKILL") else "green" if told.startswith("resumed") else ""
        lines.append(Text.assemble((f"{seconds:5.1f} s  ", "dim"), (head, style), no_wrap=True))
        lines += [Text(f"         {line}", style, no_wrap=True) for line in more]
    return lines


def _hint(picture: Picture) -> Text:
    return Text(
        f"{picture.hint} · q quits" if picture.hint else "q quits", "dim", no_wrap=True, overflow="ellipsis"
    )
