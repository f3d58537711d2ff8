"""`onejob demo`: a storm of duplicates on a temporary store, and the proof that each piece of work ran once."""

from __future__ import annotations

import asyncio
import os
import random
import sys
import tempfile
from collections import Counter
from collections.abc import Iterator
from importlib import resources
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

if TYPE_CHECKING:
    from onejob.app import App
    from onejob.plans import Call
    from onejob.receipt import Receipt

EVENTS = (
    ("send_welcome", "a double click on “sign up”, 40 users"),
    ("save_document", "8 rapid edits each of 20 documents"),
    ("handle_webhook", "30 webhooks, each delivered five times"),
    ("search", "search as you type, 10 sessions"),
    ("maintain", "maintenance asked for a hundred times"),
)


@click.command()
@click.option("--code", is_flag=True, help="Print the demo's app and end.")
def demo(code: bool) -> None:
    """Watch duplicates being absorbed, on a temporary store; ends by itself.

    Example: onejob demo
    """
    if code:
        click.echo(resources.files("onejob.cli").joinpath("demo_app.py").read_text("utf-8"))
        return
    with tempfile.TemporaryDirectory(prefix="onejob-demo-") as folder:
        os.environ["ONEJOB_URL"] = f"sqlite:///{Path(folder) / 'demo.db'}"
        from onejob.cli.demo_app import app

        sys.exit(0 if asyncio.run(_show(app)) else 1)


async def _show(app: App) -> bool:
    async with app.transaction() as tx:
        await tx.execute("create table effects (job text primary key, kind text, detail text)")
    receipts: list[Receipt[Any]] = []
    async with app.worker(concurrency=20):
        storm = list(_storm(app))
        click.echo(f"A storm of {len(storm)} calls, most of them duplicates:\n")
        for start in range(0, len(storm), 25):
            receipts += await asyncio.gather(*(_enqueue(app, call) for call in storm[start : start + 25]))
        for receipt in random.sample(receipts, 6):
            click.echo(f"  {receipt.task.rpartition('.')[2]:15} {receipt}")
        await _until_quiet(app)
    ok = await _proof(app, receipts)
    await app.aclose()
    return ok


async def _enqueue(app: App, call: Call[Any]) -> Receipt[Any]:
    [receipt] = await app.aenqueue_many([call])
    return receipt


def _storm(app: App) -> Iterator[Call[Any]]:
    """The calls of all five kinds, shuffled so that they overlap; versions of a document stay in order."""
    from onejob.cli.demo_app import handle_webhook, maintain, save_document, search, send_welcome

    kinds: list[list[Call[Any]]] = [
        [send_welcome.job(user=f"user-{n}") for n in range(40) for _ in range(2)],
        [save_document.job(document=f"doc-{n}", version=v) for v in range(1, 9) for n in range(20)],
        [handle_webhook.job(event=f"evt-{n}", body="paid") for _ in range(5) for n in range(30)],
        [search.job(session=f"s{n}", text="duplicates"[:v]) for v in range(1, 11) for n in range(10)],
        [maintain.job() for _ in range(100)],
    ]
    order = [kind for kind in kinds for _ in kind]
    random.shuffle(order)
    queues = {id(kind): iter(kind) for kind in kinds}
    for kind in order:
        yield next(queues[id(kind)])


async def _until_quiet(app: App) -> None:
    while True:
        live = {state: n for states in (await app.acounts()).values() for state, n in states.items()}
        if not any(not state.ended for state in live):
            return
        await asyncio.sleep(0.1)


async def _proof(app: App, receipts: list[Receipt[Any]]) -> bool:
    async with app.transaction() as tx:
        ran = Counter(kind for (kind,) in await tx.execute("select kind from effects"))
        jobs = {job for (job,) in await tx.execute("select job from effects")}
    names = {"send_welcome": "welcome", "save_document": "save", "handle_webhook": "webhook"}
    click.echo(f"\n{'':45} asked   ran  absorbed")
    for task, told in EVENTS:
        of_task = [receipt for receipt in receipts if receipt.task.endswith("." + task)]
        absorbed = Counter(str(receipt.outcome) for receipt in of_task if receipt.deduplicated)
        why = ", ".join(f"{n} {outcome}" for outcome, n in absorbed.most_common())
        click.echo(f"{told:45} {len(of_task):5} {ran[names.get(task, task)]:5}  {why}")
    created = {receipt.id for receipt in receipts if not receipt.deduplicated}
    named = {receipt.id for receipt in receipts}
    ok = created == jobs == named
    verdict = "every one of them ran, once" if ok else "which is NOT what ran"
    click.echo(f"\n{len(receipts)} calls made {len(created)} jobs; {verdict} ({len(jobs)} effects).")
    click.echo("The app behind it: onejob demo --code")
    return ok
