"""`onejob revoke`, `onejob retry` and `onejob delete`: by id, or all that a filter matches, after showing what that would be."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Generator, Sequence
from contextlib import contextmanager
from typing import Final

import click

from onejob import bulk
from onejob.app import App
from onejob.cli.choice import as_filter, find_ids
from onejob.cli.output import (
    ABSORBED,
    NOTHING_MATCHED,
    NothingMatched,
    confirm,
    emit,
    emit_json,
    end,
    example,
    json_option,
    printable,
    say,
)
from onejob.cli.source import Source, store_options
from onejob.core.filter import JobFilter
from onejob.core.job import Job
from onejob.core.span import counted
from onejob.store import Amended, Amendment

SAMPLES: Final = 5
DONE: Final = frozenset({Amended.RETRIED, Amended.DELETED, Amended.REVOKED, Amended.FLAGGED})
WORDS: Final = {
    Amended.FLAGGED: "flagged (running, asked to stop)",
    Amended.KEPT: "kept (another job holds the key; --force runs it without)",
    Amended.RUNNING: "left alone (running or queued)",
    Amended.AWAITED: "left alone (others wait for it, or have yet to read its output; --cascade deletes it)",
    Amended.STRANDED: "left alone (a blocker of it did not complete; onejob chain shows which, retry that first)",
    Amended.FINISHED: "left alone (finished)",
    Amended.MOVED: "left alone (their state has changed meanwhile)",
    Amended.NOT_FOUND: "not found",
}

VERBS: Final = {
    Amendment.REVOKE: ("Revoke", "revoked"),
    Amendment.RETRY: ("Retry", "retried"),
    Amendment.RETRY_WITHOUT_KEY: ("Retry", "retried"),
    Amendment.DELETE: ("Delete", "deleted"),
    Amendment.DELETE_WITH_WAITING: ("Delete", "deleted"),
}
"""What is about to be done, and what would be done."""

_jobs_argument = click.argument("texts", nargs=-1, required=True, metavar="FILTER|ID...")
yes_option = click.option("--yes", is_flag=True, help="Do not ask.")


@click.command(
    epilog=example(
        "onejob revoke 'task:send_welcome args.user:u1' --yes --url sqlite:///jobs.db",
        "onejob revoke 0198f3ab --url sqlite:///jobs.db",
    )
)
@_jobs_argument
@store_options
@yes_option
@json_option
def revoke(source: Source, texts: tuple[str, ...], yes: bool, as_json: bool) -> None:
    """Stop jobs that have not ended.

    By id, or all that a filter matches; shows them and asks, unless it is one id. A queued job ends revoked at
    once. A running one is flagged: its handler is told to stop, and it ends revoked whatever its handler does.
    """
    _amend(source, texts, Amendment.REVOKE, ask_for_ids=len(texts) > 1, yes=yes, as_json=as_json)


@click.command(
    epilog=example(
        "onejob retry 'state:failed error:timeout' --yes --url sqlite:///jobs.db",
        "onejob retry 0198f3ab --url sqlite:///jobs.db",
    )
)
@_jobs_argument
@store_options
@click.option("--force", is_flag=True, help="Retry without its key what another job's key would keep.")
@yes_option
@json_option
def retry(source: Source, texts: tuple[str, ...], force: bool, yes: bool, as_json: bool) -> None:
    """Run failed jobs again.

    By id, or all that a filter matches, which is shown first: the failed ones, unless it says state:revoked, and
    dead letters, if it names their queue. The same jobs run, with a fresh budget of attempts. Exit code 4: kept,
    because others hold their keys.
    """
    amendment = Amendment.RETRY_WITHOUT_KEY if force else Amendment.RETRY
    _amend(source, texts, amendment, ask_for_ids=False, yes=yes, as_json=as_json)


@click.command(epilog=example("onejob delete 'state:failed older:30d' --yes --url sqlite:///jobs.db"))
@_jobs_argument
@store_options
@click.option(
    "--cascade", is_flag=True, help="Even if others wait for them: to those, they are revoked, and they fail."
)
@yes_option
@json_option
def delete(source: Source, texts: tuple[str, ...], cascade: bool, yes: bool, as_json: bool) -> None:
    """Remove jobs from the record.

    By id, or all that a filter matches; shows them and asks. A queued job counts as revoked, a running one is
    left alone, and so is one that others wait for; what a key remembers stays. Of a chain, all jobs are removed.
    """
    amendment = Amendment.DELETE_WITH_WAITING if cascade else Amendment.DELETE
    _amend(source, texts, amendment, ask_for_ids=True, yes=yes, as_json=as_json)


def _amend(
    source: Source, texts: Sequence[str], amendment: Amendment, *, ask_for_ids: bool, yes: bool, as_json: bool
) -> None:
    text = as_filter(texts)

    async def act(app: App) -> None:
        if text is None:
            ids = await find_ids(app.store, texts)
            if ask_for_ids:
                found = [job for id in ids[:SAMPLES] if (job := await app.store.job(id)) is not None]
                ask(VERBS[amendment][0], len(ids), found, yes=yes)
            report(Counter(await app.store.amend(ids, amendment)), as_json)
            return
        outcomes = await amend_matching(app, text, amendment, yes=yes)
        if outcomes is None:
            raise NothingMatched(f"No job matches that could be {VERBS[amendment][1]}.")
        report(outcomes, as_json)

    source.run(act)


async def amend_matching(
    app: App, filter: str | JobFilter, amendment: Amendment, *, yes: bool, noun: str = "job"
) -> Counter[Amended] | None:
    """Show what matches, ask, and amend it; None if nothing does."""
    parts = bulk.affected(filter, amendment)
    count = sum([await app.store.count(part) for part in parts])
    if not count:
        return None
    samples = [job for part in parts for job in (await app.store.jobs(part, SAMPLES)).jobs]
    verb = VERBS[amendment][0]
    ask(verb, count, samples, yes=yes, noun=noun)
    with progress(verb, count) as advance:
        return await bulk.amend_many(app.store, filter, amendment, on_batch=advance)


def ask(verb: str, count: int, samples: Sequence[Job], *, yes: bool, noun: str = "job") -> None:
    """Show what is about to happen and ask whether it should."""
    say(f"{verb} {counted(count, noun)}:")
    for job in samples[:SAMPLES]:
        error = printable((job.error or "").split("\n", 1)[0])[:80]
        say(f"  {job.id}  {job.state}  {job.queue}  {job.task}  {error}".rstrip())
    if samples and count > len(samples[:SAMPLES]):
        say(f"  and {count - len(samples[:SAMPLES])} more")
    confirm("Go on?", yes=yes)


def report(outcomes: Counter[Amended], as_json: bool) -> None:
    """Say what became of it, and end with the exit code that fits."""
    if as_json:
        emit_json({str(outcome): count for outcome, count in sorted(outcomes.items())})
    else:
        told = [f"{count} {WORDS.get(outcome, str(outcome))}" for outcome, count in sorted(outcomes.items())]
        emit(", ".join(told) or "nothing changed")
    if DONE & outcomes.keys():
        return
    if Amended.KEPT in outcomes:
        end(ABSORBED)
    end(NOTHING_MATCHED if set(outcomes) <= {Amended.NOT_FOUND, Amended.FINISHED} else 1)


@contextmanager
def progress(verb: str, total: int) -> Generator[Callable[[int], None]]:
    """A progress bar on a terminal, for what takes more than one batch."""
    import sys

    if total <= bulk.BATCH or not sys.stderr.isatty():
        yield lambda _: None
        return
    from rich.console import Console
    from rich.progress import Progress

    with Progress(console=Console(stderr=True), transient=True) as bar:
        task = bar.add_task(verb, total=total)
        yield lambda done: bar.advance(task, done)
