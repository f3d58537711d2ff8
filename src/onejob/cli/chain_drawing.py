"""How `onejob chain` looks at a terminal: ids whole, one line for each job and blocker, and below it why it ended."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from shutil import get_terminal_size
from typing import Final

from rich.console import Console
from rich.text import Text

from onejob.cli.chain_tree import Gap, Node, Tree, run_time, waited
from onejob.cli.output import fitting, printable, say, style_of
from onejob.core.job import State
from onejob.core.span import span

COLUMNS: Final = ("job", "state", "task", "ran", "waited", "try", "age", "queue")
NARROW: Final = ("job", "state", "task", "time")
"""Where there is no room for both times: how long it ran, or else has waited."""
NAMED: Final = 3
"""How many of those who wait for the chain are named."""


@dataclass(frozen=True, slots=True)
class Twigs:
    """What a tree is drawn with."""

    fork: str = "├ "
    last: str = "└ "
    side: str = "│ "
    none: str = "  "
    mark: str = "◀"

    @classmethod
    def of(cls, encoding: str) -> Twigs:
        """Lines where the terminal has them."""
        return cls() if encoding.lower().startswith("utf") else cls("|-", "`-", "| ", "  ", "<")


@dataclass(frozen=True, slots=True)
class Line:
    """A line of the drawing: a node with its cells, or a remark that takes all the room."""

    head: str
    node: Node | None = None
    text: str = ""


def draw(tree: Tree) -> None:
    """Print the tree; the job that was asked for is marked."""
    room = get_terminal_size().columns
    lines = list(_lines(tree, Twigs.of(sys.stdout.encoding)))
    columns, cells = COLUMNS, [_cells(line, tree.now) for line in lines if line.node is not None]
    widths = fitting(columns, cells, room)
    if columns.index("waited") not in widths:
        columns, cells = NARROW, [(*row[:3], row[3] or row[4]) for row in cells]
        widths = fitting(columns, cells, room)
    console = Console(highlight=False)

    def show(row: tuple[str, ...], style: str = "") -> None:
        shown = Text(style=style)
        for place, width in widths.items():
            cell = Text(row[place], style_of(row[place]) if columns[place] == "state" else "")
            cell.truncate(width, overflow="ellipsis", pad=True)
            shown.append_text(cell).append("  ")
        shown.rstrip()
        console.print(shown, no_wrap=True, overflow="ellipsis", crop=True)

    show(columns, "bold")
    rows = iter(cells)
    for line in lines:
        if line.node is None:
            console.print(
                Text(line.head).append(printable(line.text), "dim"), no_wrap=True, overflow="ellipsis"
            )
        else:
            show(next(rows), "bold" if _is_asked(line.node, tree) else "")
    _say_who_waits(tree)


def _cells(line: Line, now: int) -> tuple[str, ...]:
    """A node as people read it: lengths of time, and no more than says something."""
    assert line.node is not None
    job = line.node.job
    if job is None:
        return line.head, line.node.state, *[""] * (len(COLUMNS) - 2)
    run = run_time(job, now)
    due = job.due - now if job.state is State.DELAYED else 0
    return (
        line.head,
        line.node.state,
        printable(job.task.rpartition(".")[2] or job.task),  # as in filters, without its module
        "" if run is None else span(run),
        f"due in {span(due)}" if due > 0 else span(waited(job, now)),
        str(job.attempt or ""),
        span(now - job.accepted),
        printable(job.queue),
    )


def _lines(tree: Tree, twigs: Twigs) -> Iterator[Line]:
    width = len(str(tree.last.chain_index))
    below = " " * (width + 1)
    for step in tree.steps:
        if isinstance(step, Gap):
            yield Line(below, text=f"and {_in_numbers(step.left_out)}")
            continue
        assert step.job is not None
        mark = f" {twigs.mark}" if _is_asked(step, tree) else ""
        yield Line(f"{step.job.chain_index:>{width}} {step.job.id}{mark}", step)
        yield from _below(step, below, twigs)


def _below(node: Node, before: str, twigs: Twigs) -> Iterator[Line]:
    """What stands below a node: why it ended, its blockers, and what is not shown of them."""
    children: list[Node | str] = [*node.blockers, *_notes(node)]
    if node.reason:
        yield Line(before + (twigs.side if children else twigs.none), text=node.reason)
    for place, child in enumerate(children, 1):
        twig, after = (twigs.last, twigs.none) if place == len(children) else (twigs.fork, twigs.side)
        if isinstance(child, str):
            yield Line(before + twig, text=child)
        else:
            yield Line(before + twig + child.chain, child)
            yield from _below(child, before + after, twigs)


def _notes(node: Node) -> Iterator[str]:
    if node.left_out:
        yield f"and {_in_numbers(node.left_out)}"
    if node.folded:
        chains = "chain" if node.folded == 1 else "chains"
        yield f"waits for {node.folded:,} {chains}, not shown"
    if node.repeated:
        yield "its blockers are shown where it stands once more"


def _in_numbers(left_out: Mapping[str, int]) -> str:
    ordered = sorted(left_out.items(), key=lambda pair: (-pair[1], pair[0]))
    return f"{sum(left_out.values()):,} more: " + ", ".join(f"{count:,} {state}" for state, count in ordered)


def _say_who_waits(tree: Tree) -> None:
    for id in tree.waiting[:NAMED]:
        say(f"Job {id} waits for this chain.")
    if len(tree.waiting) > NAMED:
        say("Others do, too.")


def _is_asked(node: Node, tree: Tree) -> bool:
    return node.job is not None and node.job.id == tree.asked
