"""`onejob doctor`: says in words what is wrong with a store, and what to do about it."""

from __future__ import annotations

import asyncio

import click
import msgspec

from onejob.app import App
from onejob.cli.output import emit, emit_json, end, example, json_option, on_terminal, printable, say
from onejob.cli.source import Source, store_options
from onejob.diagnosis import diagnose, diagnose_intakes
from onejob.store import Finding, Level


@click.command(epilog=example("onejob doctor --url sqlite:///jobs.db"))
@store_options
@json_option
def doctor(source: Source, as_json: bool) -> None:
    """Say what is wrong with a store, and what to do.

    Looks at the file, its disk, its schema and its soundness, at queues that nobody serves, at workers that
    died and at tables that an app's intakes miss. Changes nothing. Exit code 1 if something is wrong; warnings do not count.
    """
    app = source.app()
    findings = asyncio.run(_examine(app))
    healthy = not any(finding.level is Level.ERROR for finding in findings)
    if as_json:
        listed = [msgspec.structs.asdict(finding) for finding in findings]
        emit_json({"url": app.url, "healthy": healthy, "findings": listed})
    else:
        _tell(findings)
        if healthy:
            say(f"{app.url} is healthy.")
    if not healthy:
        end(1)


async def _examine(app: App) -> list[Finding]:
    async with app:
        findings = await diagnose(app.store)
        if any(finding.blocking for finding in findings):
            return findings
        return [*findings, *await diagnose_intakes(app.intakes.values())]


def _tell(findings: list[Finding]) -> None:
    for finding in findings:
        what, remedy = printable(finding.what), printable(finding.remedy)
        if on_terminal():
            emit(f"{finding.level}: {what}\n    {remedy}")
        else:
            emit(f"{finding.level}\t{finding.name}\t{what}\t{remedy}")
