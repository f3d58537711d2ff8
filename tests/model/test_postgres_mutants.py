"""Known bugs in the statements of the PostgreSQL store are noticed by the conformance suite: a mutant is a statement with
one guard less.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
from servers.schemas import Schema, Schemas
from test_mutants import Open, conforms

from onejob.core.errors import OnejobError
from onejob.store import JobStore
from onejob.stores import open_store, postgres
from onejob.stores.postgres.statements import FILES, sql
from onejob.testing import conformance
from onejob.testing.clock import FakeClock


@dataclass(frozen=True)
class Mutant:
    """What stands in the statements, what is put in its place, and who is to notice."""

    changes: dict[str, str]
    suites: tuple[type, ...]


SQL = Path(postgres.__file__).parent / "sql"
FLAGGED = "exists (select 1 from onejob.flag f where f.chain = coalesce(j.chain, j.id))"
MUTANTS = {
    "a claim starts what runs already": Mutant(
        {
            "j.state = 'waiting' and j.queue = q.name": "j.state in ('waiting', 'running') and j.queue = q.name"
        },
        (conformance.TestClaim,),
    ),
    "a claim does not look at priorities": Mutant(
        {
            "order by j.priority desc, j.due, j.seq\n                limit 10000": "order by j.seq\n limit 10000"
        },
        (conformance.TestClaim,),
    ),
    "an end needs no lease": Mutant(
        {
            "and j.lease =\n": "and j.lease is not null or false and j.lease =\n",
            "and lease = ($2": "or lease = ($2",
        },
        (conformance.TestSettle,),
    ),
    "a key is forgotten with its holder": Mutant(
        {"where coalesce(h.until, 0) <= i.now": "where true", "where h.until > i.now": "where false"},
        (conformance.TestSettle, conformance.TestEnqueue, conformance.TestCorners),
    ),
    "nobody sees that a job was asked to stop": Mutant(
        {FLAGGED: "false", "j.aborting or": "false and j.aborting or"}, (conformance.TestRevocation,)
    ),
    "nobody notes who may wait": Mutant(
        {"from over where awaited": "from over where false"},
        (conformance.TestCorners, conformance.TestBlockers),
    ),
    "failures are not counted": Mutant(
        {"j.failures + (": "j.failures + 0 * ("}, (conformance.TestSettle, conformance.TestRetry)
    ),
    "a worker is lost a moment too early": Mutant(
        {"w.alive_until > (select i.now": "w.alive_until - 1 > (select i.now"}, (conformance.TestExpired,)
    ),
    "a limit counts nobody": Mutant(
        {"from onejob.job j where j.state = 'running' and j.queue = q.name": "from onejob.job j where false"},
        (conformance.TestQueueLimits,),
    ),
    "what was revoked is claimed": Mutant(
        {"where j.state = 'waiting' and j.queue": "where j.state in ('waiting', 'revoked') and j.queue"},
        (conformance.TestClaim, conformance.TestRevoke),
    ),
}
QUICK = ("a claim starts what runs already", "a limit counts nobody")


@pytest.fixture
def open_one(postgres_schemas: Schemas) -> Iterator[Open]:
    """Opens stores one after the other, each with tables that are empty."""
    used: list[Schema] = []

    def opened(clock: FakeClock) -> JobStore:
        while used:
            postgres_schemas.give_back(used.pop())
        used.append(postgres_schemas.take())
        return open_store(used[-1].url, clock=clock)

    yield opened
    for schema in used:
        postgres_schemas.give_back(schema)


@pytest.fixture(autouse=True)
def statements(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """They are as they were, afterwards."""
    FILES.read_all()
    yield
    monkeypatch.undo()
    sql.cache_clear()


def notices(mutant: Mutant, opened: Open, monkeypatch: pytest.MonkeyPatch) -> bool:
    """Whether a test fails once all statements have been changed."""
    missing = set(mutant.changes)
    for file in SQL.glob("*.sql"):
        statements = FILES.statements(file.stem)
        for name in statements:
            for right, wrong in mutant.changes.items():
                if right in statements[name]:
                    missing.discard(right)
                    monkeypatch.setitem(statements, name, statements[name].replace(right, wrong))
    assert missing == set(), "no statement says that any more"
    sql.cache_clear()
    try:
        return not conforms(opened, [*mutant.suites])
    except (OnejobError, TimeoutError):
        return True


@pytest.mark.parametrize("name", QUICK)
def test_a_statement_that_errs_is_caught(name: str, open_one: Open, monkeypatch: pytest.MonkeyPatch) -> None:
    assert notices(MUTANTS[name], open_one, monkeypatch)


@pytest.mark.torture
@pytest.mark.parametrize("name", [name for name in MUTANTS if name not in QUICK])
def test_so_are_the_others(name: str, open_one: Open, monkeypatch: pytest.MonkeyPatch) -> None:
    assert notices(MUTANTS[name], open_one, monkeypatch)
