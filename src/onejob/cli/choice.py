"""Which jobs a command is about: ids, beginnings of ids, or a filter."""

from __future__ import annotations

from collections.abc import Sequence

import click

from onejob.cli.output import NothingMatched
from onejob.core.filter import JobFilter, looks_like_id, parse
from onejob.core.job import Job, JobId
from onejob.store import JobStore

WHOLE_ID = 36
"""Characters of a job's id."""


async def find_job(store: JobStore, text: str) -> Job:
    """The job that an id, or an unambiguous beginning of one, stands for."""
    if not looks_like_id(text):
        raise click.UsageError(f"{text!r} is no job's id: give at least six characters of it, 0-9 a-f and -.")
    found = (await store.jobs(JobFilter(ids=frozenset({text})), 6)).jobs
    if not found:
        raise NothingMatched(f"There is no job {text}: it never was here, or has been pruned.")
    if len(found) > 1:
        listed = "\n".join(f"  {job.id} {job.state} {job.task}" for job in found[:5])
        more = "\n  …" if len(found) > 5 else ""
        raise click.UsageError(f"Several ids begin with {text}: give more of it.\n{listed}{more}")
    return found[0]


async def find_ids(store: JobStore, texts: Sequence[str]) -> list[JobId]:
    """The ids that are meant. A whole one is taken as it is: it may be that of a dead letter's lost original."""
    ids = [
        JobId(text.lower())
        if len(text) == WHOLE_ID and looks_like_id(text)
        else (await find_job(store, text)).id
        for text in texts
    ]
    return list(dict.fromkeys(ids))


def as_filter(texts: Sequence[str]) -> str | None:
    """The filter that arguments are; None if they are ids."""
    terms = [":" in text for text in texts]
    if not any(terms):
        return None
    if all(looks_like_id(text) for text, term in zip(texts, terms, strict=True) if not term) and not all(
        terms
    ):
        raise click.UsageError("Give ids or a filter, not both: an id is also a term, id:0198….")
    text = " ".join(texts)
    parse(text)
    return text
