"""`onejob why`: how a job stands and what it waits for, or who holds a key and what the next call would get."""

from __future__ import annotations

import click

from onejob.app import App
from onejob.cli.choice import find_job
from onejob.cli.output import NothingMatched, emit, emit_json_lines, example, json_option, printable
from onejob.cli.source import Source, store_options
from onejob.core.filter import looks_like_id
from onejob.explain import Explanation, explain_key, unless_taken
from onejob.store import Key

MOST = 20


@click.command(
    epilog=example("onejob why u1 --url sqlite:///jobs.db", "onejob why 0198f3ab --url sqlite:///jobs.db")
)
@click.argument("subject", metavar="ID|KEY")
@store_options
@click.option("--queue", help="The key's queue.")
@click.option("--task", help="The task of the key's holder.")
@json_option
def why(source: Source, subject: str, queue: str | None, task: str | None, as_json: bool) -> None:
    """Say why a job stands as it does, or who holds a key.

    A key is given as receipts show it. What several tasks or queues have under that name is told one by one.
    """

    async def ask(app: App) -> None:
        keys = await find_keys(app, subject, queue, task)
        if keys:
            explanations = [await _about(app, key) for key in keys]
        elif looks_like_id(subject):
            explanations = [await app.aexplain((await find_job(app.store, subject)).id)]
        else:
            takers = await app.store.undecided()
            raise NothingMatched(
                f"Nobody holds key {subject!r}, and no record of it is kept: "
                + (f"it is free, {unless_taken(takers)}." if takers else "it is free.")
                + " A job's id takes at least six characters."
            )
        if as_json:
            emit_json_lines(explanation.as_dict() for explanation in explanations)
        else:
            told = ("\n".join(printable(line) for line in one.reasons) for one in explanations)
            emit("\n\n".join(told))

    source.run(ask)


async def find_keys(app: App, text: str, queue: str | None, task: str | None) -> list[Key]:
    """The keys on record that read so."""
    # On record, a key is as receipts show it: escaped.
    found = await app.store.keys(queue, MOST, text=printable(text))
    return [key for key in found if task is None or key.task == task or key.task.endswith(f".{task}")]


async def _about(app: App, key: Key) -> Explanation:
    if key.holder.gone:
        return explain_key(key, await app.store.time())
    return await app.aexplain(key.holder.id)
