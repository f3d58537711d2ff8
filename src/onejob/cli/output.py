"""How commands speak: data on stdout, talk on stderr; tables for a terminal, tab-separated lines for a pipe.

`--json` gives one document, or for lists one object per line. Text that comes out of a store is shown with its
control characters escaped, because a terminal would obey them.
"""

from __future__ import annotations

import math
import signal
import sys
from collections.abc import Iterable, Mapping, Sequence
from shutil import get_terminal_size
from typing import Any, Final, NoReturn

import click

NOTHING_MATCHED: Final = 3
ABSORBED: Final = 4

_STYLES: Final = {
    "failed": "red",
    "error": "red",
    "running": "green",
    "revoked": "yellow",
    "warning": "yellow",
    "paused": "yellow",
}
_ELASTIC: Final = {
    "error": 16,
    "key": 12,
    "lane": 12,
    "limits": 6,
    "task": 24,
    "timing": 12,
    "runs": 12,
    "note": 12,
}
"""Columns that may be cut, and how much of them must be seen."""
LEAST: Final = 6
"""How much of them is seen where even that is too much, because what is left of the others must stay whole."""
_DISPENSABLE: Final = (
    "try", "on retry", "differing", "concurrency", "host", "pid", "from", "first", "attempt", "original",
    "ended", "fired", "declared", "queue", "last job", "last", "runs", "buried", "taken", "age", "seen", "waited", "rate", "chain", "lane", "key",
    "revoked", "completed", "longest wait",
)  # fmt: skip
"""Columns that go where there is little room, the least missed first; a table's first column stays."""
_UNSAFE_IN_JSON: Final = {code: f"\\u{code:04x}" for code in (*range(0x7F, 0xA0), 0x2028, 0x2029)}


class NothingMatched(click.ClickException):
    """There was nothing to do, or to show."""

    exit_code = NOTHING_MATCHED

    def show(self, file: Any = None) -> None:
        """Say so, without calling it an error."""
        say(self.message)


class Seconds(click.FloatRange):
    """A length of time in seconds; unlike its parent, it knows that nan lies in no range."""

    name = "seconds"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> float:
        """Read it, or say what is wrong."""
        read = super().convert(value, param, ctx)
        if not math.isfinite(read):
            self.fail(f"{value} is not a length of time.", param, ctx)
        return read


json_option = click.option("--json", "as_json", is_flag=True, help="Print JSON.")


def example(*lines: str) -> str:
    """The end of a command's help."""
    return "\b\nExample:\n" + "\n".join(f"  {line}" for line in lines)


def say(text: str = "") -> None:
    """Talk to the person at the terminal."""
    click.echo(text, err=True)


def emit(text: str) -> None:
    """Print a line of data."""
    click.echo(text)


def emit_json(value: object, *, indent: bool = True) -> None:
    """Print one JSON document."""
    click.echo(as_json_text(value, indent=indent and on_terminal()))


def as_json_text(value: object, *, indent: bool) -> str:
    """A value as JSON that a terminal can show."""
    import msgspec

    data = msgspec.json.encode(value)
    text = (msgspec.json.format(data, indent=2) if indent else data).decode()
    return text.translate(_UNSAFE_IN_JSON)


def emit_json_lines(values: Iterable[object]) -> None:
    """Print one JSON object per line."""
    for value in values:
        emit_json(value, indent=False)


def emit_table(headings: Sequence[str], rows: Iterable[Sequence[object]]) -> None:
    """Print rows: as a table on a terminal, else as tab-separated lines without headings."""
    if not on_terminal():
        for row in rows:
            click.echo("\t".join(printable(cell) for cell in row))
        return
    from rich.console import Console

    Console(highlight=False).print(table(headings, rows))


def table(headings: Sequence[str], rows: Iterable[Sequence[object]], title: str | None = None) -> Any:
    """Rows as a rich table of one line each, in which nothing is taken for markup.

    Empty columns are left out, and in a narrow terminal those that matter least: half an id cannot be copied.
    """
    from rich import box
    from rich.table import Table
    from rich.text import Text

    texts = [[printable(cell) for cell in row] for row in rows]
    made = Table(box=box.SIMPLE_HEAD, title=title, title_justify="left", pad_edge=False, padding=(0, 1, 0, 0))
    widths = fitting(headings, texts, get_terminal_size().columns)
    for place, width in widths.items():
        made.add_column(headings[place], overflow="ellipsis", no_wrap=True, width=width)
    for row in texts:
        made.add_row(*(Text(row[place], style=style_of(row[place])) for place in widths))
    return made


def style_of(cell: str) -> str:
    """The colour of a cell: states and levels have theirs."""
    return _STYLES.get(cell, "")


def fitting(headings: Sequence[str], texts: Sequence[Sequence[str]], room: int) -> dict[int, int]:
    """The columns that say something and have room, by their places, and how wide each is."""
    from rich.cells import cell_len  # some characters take two places

    natural = {
        place: max(len(headings[place]), *(cell_len(row[place]) for row in texts))
        for place in range(len(headings))
        if any(row[place] for row in texts)
    }
    widths = {place: min(width, _ELASTIC.get(headings[place], width)) for place, width in natural.items()}
    for heading in _DISPENSABLE:
        place = headings.index(heading) if heading in headings else 0
        if place and _total(widths) > room:
            widths.pop(place, None)
    elastic = [place for place in widths if headings[place] in _ELASTIC]
    while (
        _total(widths) > room and (widest := max(elastic, key=widths.__getitem__, default=None)) is not None
    ):
        if widths[widest] <= LEAST:
            break
        widths[widest] -= 1
    for place, width in widths.items():
        widths[place] = width + max(0, min(natural[place] - width, room - _total(widths)))
    return widths


def _total(widths: Mapping[int, int]) -> int:
    return sum(widths.values()) + 2 * len(widths) + 1


def emit_fields(fields: Mapping[str, object]) -> None:
    """Print named values, each on a line of its own; a text of several lines stands below its name."""
    width = max(map(len, fields), default=0) if on_terminal() else 0
    for name, value in fields.items():
        text = "" if value is None else str(value)
        if not on_terminal():
            click.echo(f"{name}\t{printable(text)}")
        elif "\n" in text:
            click.echo(f"{name}:")
            for line in text.split("\n"):
                click.echo(f"    {printable(line)}")
        else:
            click.echo(f"{name:{width}}  {printable(text)}")


def printable(value: object) -> str:
    """A value as text in which nothing can act on a terminal, or be taken for the end of a cell."""
    text = "" if value is None else str(value)
    if text.isprintable():
        return text
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in text)


def on_terminal() -> bool:
    """True if a person reads what is printed."""
    return sys.stdout.isatty()


def confirm(question: str, *, yes: bool) -> None:
    """Go on if it was said beforehand, or is said now; without a terminal to ask at, refuse."""
    if yes:
        return
    if not (sys.stdin.isatty() and sys.stderr.isatty()):
        raise click.UsageError("This needs a yes, and there is no terminal to ask at: add --yes.")
    # An event loop would only take note of a Ctrl-C, and the question would go on waiting.
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        agreed = click.confirm(question, err=True)
    finally:
        signal.signal(signal.SIGINT, before)
    if not agreed:
        say("Nothing was changed.")
        end(1)


def end(code: int) -> NoReturn:
    """End the command with an exit code."""
    raise click.exceptions.Exit(code)
