"""`onejob enqueue`: one call from the command line, its arguments read by the task's own type hints."""

from __future__ import annotations

from typing import Any

import click
from msgspec.structs import replace

from onejob.app import App
from onejob.cli.output import ABSORBED, emit, emit_json, end, example, json_option, say
from onejob.cli.source import Source, app_option
from onejob.cli.view import plan_data
from onejob.core.dedup import Unique
from onejob.core.errors import DuplicateJob, shown
from onejob.core.filter import span
from onejob.core.judge import Outcome
from onejob.explain import Explanation
from onejob.keys import all_there_are, near
from onejob.plans import CallSettings
from onejob.receipt import Receipt
from onejob.tasks import Sender, Task


@click.command(
    epilog=example(
        "onejob enqueue --app jobs:app send_welcome user=u1 name=Ada",
        "onejob enqueue --app jobs:app send_welcome user=u1 --dry-run",
    )
)
@click.argument("task")
@click.argument("arguments", nargs=-1, metavar="[NAME=VALUE]...")
@app_option
@click.option("--dry-run", is_flag=True, help="Say what would happen, and store nothing.")
@click.option("--delay", metavar="SPAN", help="Start no sooner than in 90s, 10m, 1h30m …")
@click.option("--key", help="The key, instead of the one that the task's policy makes.")
@click.option("--queue", help="The queue, instead of the task's.")
@click.option("--priority", type=int, help="Higher starts first.")
@click.option("--force", is_flag=True, help="Run in any case, whoever holds the key.")
@json_option
def enqueue(
    task: str,
    arguments: tuple[str, ...],
    target: str | None,
    dry_run: bool,
    as_json: bool,
    **options: Any,
) -> None:
    """Ask for a task to be run, and say what became of that.

    TASK is the task's name; its module may be left out. Values are JSON if that fits the parameter's type hint,
    else text. Exit code 4: no new job, because its key is held.
    """
    if target is None:
        raise click.UsageError("Tasks are in an app: give --app MODULE:APP, or set $ONEJOB_APP.")

    async def ask(app: App) -> None:
        found = find_task(app, task)
        sender = _sender(found, **options)
        given = _arguments(found, arguments)
        if not dry_run:
            await _enqueue(sender, given, as_json)
        elif await app.store.exists():
            _tell_explanation(await sender.aexplain(**given), as_json)
        else:
            sender.job(**given)  # refuses wrong arguments
            nothing_held = f"The next such call would be created: there is no store {app.url} yet."
            explanation = Explanation(
                task=found.name, queue=found.queue, next_outcome=Outcome.CREATED, reasons=(nothing_held,)
            )
            _tell_explanation(explanation, as_json)

    Source(target, None).run(ask, may_create=True)


def find_task(app: App, name: str) -> Task[..., Any]:
    """The task of that name, or the only one whose name ends so."""
    if name in app.tasks:
        return app.tasks[name]
    endings = [known for known in app.tasks if known.endswith(f".{name}")]
    if not endings:
        short = {known.rpartition(".")[2]: known for known in app.tasks}
        hint = near(name, (*short, *app.tasks), otherwise=all_there_are(tuple(app.tasks)))
        raise click.UsageError(f"This app has no task {shown(name)}: {hint}")
    if len(endings) > 1:
        raise click.UsageError(f"Several tasks are named {name!r}: say which of {', '.join(endings)}.")
    return app.tasks[endings[0]]


def _sender(
    task: Task[..., Any],
    *,
    delay: str | None,
    key: str | None,
    queue: str | None,
    priority: int | None,
    force: bool,
) -> Sender[..., Any]:
    settings: CallSettings = {}
    if delay is not None:
        settings["delay"] = span("--delay", delay) / 1000
    if key is not None:
        policy = task.planner.options.unique or Unique()
        settings["unique"] = replace(policy, key=key, by=None)
    if queue is not None:
        settings["queue"] = queue
    if priority is not None:
        settings["priority"] = priority
    if force:
        settings["force"] = True
    return task.using(**settings)


def _arguments(task: Task[..., Any], given: tuple[str, ...]) -> dict[str, Any]:
    read: dict[str, Any] = {}
    for argument in given:
        name, equals, text = argument.partition("=")
        if not equals or not name:
            raise click.UsageError(f"{argument!r} has no name: write it as name=value.")
        if name in read:
            raise click.UsageError(f"{name!r} is given twice.")
        read[name] = task.codec.from_text(name, text)
    return read


async def _enqueue(sender: Sender[..., Any], given: dict[str, Any], as_json: bool) -> None:
    try:
        receipt = await sender.aenqueue(**given)
    except DuplicateJob as error:
        say(f"Error: {error}")
        end(ABSORBED)
    if as_json:
        emit_json(receipt_data(receipt))
    else:
        emit(str(receipt))
    if receipt.deduplicated:
        end(ABSORBED)


def receipt_data(receipt: Receipt[Any]) -> dict[str, Any]:
    """A receipt as plain data."""
    return {
        "id": receipt.id,
        "outcome": receipt.outcome,
        "deduplicated": receipt.deduplicated,
        "task": receipt.task,
        "queue": receipt.queue,
        "key": receipt.key,
        "verdict": receipt.verdict.word,
        "holder": receipt.holder,
        "holder_state": receipt.holder_state,
        "age": receipt.age,
        "payload_differs": receipt.payload_differs,
        "options_differ": receipt.options_differ,
        "lane": receipt.lane,
        "former_lane": None if receipt.former_lane is None else plan_data(receipt.former_lane),
        "text": str(receipt),
    }


def _tell_explanation(explanation: Explanation, as_json: bool) -> None:
    if as_json:
        emit_json(explanation.as_dict())
    else:
        emit(str(explanation))
    if explanation.next_outcome not in (None, Outcome.CREATED):
        end(ABSORBED)
