"""`onejob chain`: the jobs of a chain and whom they wait for, as a tree with states and times."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from typing import Any

import click

from onejob.app import App
from onejob.cli.chain_tree import ALL, DEEPEST, MOST, Bounds, Gap, Node, Tree, gather, run_time, waited
from onejob.cli.choice import find_ids
from onejob.cli.output import (
    NothingMatched,
    emit,
    emit_json,
    example,
    json_option,
    on_terminal,
    printable,
)
from onejob.cli.source import Source, store_options
from onejob.cli.view import instant, job_data


@click.command(
    epilog=example(
        "onejob chain 0198f3ab --url sqlite:///jobs.db",
        "onejob chain 0198f3ab --all --json --url sqlite:///jobs.db",
    )
)
@click.argument("id")
@store_options
@click.option(
    "--limit",
    default=Bounds().limit,
    show_default=True,
    type=click.IntRange(1, 100_000),
    help="At most so many jobs, and so many blockers of each.",
)
@click.option(
    "--depth",
    default=Bounds().depth,
    show_default=True,
    type=click.IntRange(0, DEEPEST),
    help="How deep blockers are unfolded.",
)
@click.option("--all", "everything", is_flag=True, help="Leave nothing out.")
@json_option
def chain(source: Source, *, id: str, limit: int, depth: int, everything: bool, as_json: bool) -> None:
    """Draw the chain of a job and what it waits for.

    ID is that of any of its jobs. Each job has its place in front and below it its blockers, which are chains:
    each stands there with the state, the task and the times of its last job.
    """
    bounds = ALL if everything else Bounds(limit, depth, max(limit, MOST))

    async def look(app: App) -> None:
        [meant] = await find_ids(app.store, [id])
        tree = await gather(app.store, meant, bounds)
        if tree is None:
            raise NothingMatched(f"There is no job {id}: it never was here, or has been pruned.")
        if as_json:
            emit_json(tree_data(tree))
        elif on_terminal():
            from onejob.cli.chain_drawing import draw

            draw(tree)
        else:
            for cells in _plain(tree):
                emit("\t".join(printable(cell) for cell in cells))

    source.run(look)


def tree_data(tree: Tree) -> dict[str, Any]:
    """All of it as plain data."""
    gaps = sum((step.left_out for step in tree.steps if isinstance(step, Gap)), Counter[str]())
    return {
        "chain": tree.last.chain,
        "asked": tree.asked,
        "state": tree.last.state,
        "length": tree.length,
        "jobs": [_node_data(node, tree.now) for node in tree.jobs],
        "left_out": gaps,
        "waited_for_by": tree.waiting,
    }


def _node_data(node: Node, now: int) -> dict[str, Any]:
    about: dict[str, Any] = {"id": None, "chain": node.chain, "state": None}
    if node.job is not None:
        run = run_time(node.job, now)
        about = {
            **job_data(node.job),
            "waited": waited(node.job, now) / 1000,
            "ran": None if run is None else run / 1000,
        }
    return {
        **about,
        "blocker_chains": [_node_data(blocker, now) for blocker in node.blockers],
        "left_out": node.left_out,
        "folded": node.folded,
        "repeated": node.repeated,
    }


def _plain(tree: Tree) -> Iterator[tuple[object, ...]]:
    """Lines for programs: what each is about, how deep it lies, and then as fits that."""
    for step in tree.steps:
        if isinstance(step, Gap):
            yield from (("more", 0, state, count) for state, count in step.left_out.items())
        else:
            yield from _plain_node("job", step, 0, tree)
    yield from (("waiting", 0, id) for id in tree.waiting)


def _plain_node(what: str, node: Node, depth: int, tree: Tree) -> Iterator[tuple[object, ...]]:
    job = node.job
    if job is None:
        yield what, depth, node.chain, "", node.state, "", "", "", "", "", "", ""
        return
    times = (instant(job.accepted), instant(job.started), instant(job.ended))
    mark = "asked" if job.id == tree.asked else ""
    id = job.id if what == "job" else node.chain
    yield (
        what, depth, id, job.chain_index, node.state, job.task, job.queue, *times, mark, node.reason
    )  # fmt: skip
    for blocker in node.blockers:
        yield from _plain_node("blocker", blocker, depth + 1, tree)
    yield from (("more", depth + 1, state, count) for state, count in node.left_out.items())
    if node.folded:
        yield "more", depth + 1, "", node.folded
