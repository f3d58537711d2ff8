"""What `onejob doctor` makes of the facts about a PostgreSQL server."""

from __future__ import annotations

from collections.abc import Iterable

import pytest

from onejob.core.errors import OnejobError, StoreUnavailable
from onejob.store import Finding
from onejob.stores.postgres import migrate
from onejob.stores.postgres.findings import (
    MANY_DEAD,
    Facts,
    findings,
    indexes,
    on_bloat,
    on_lock_waits,
    on_notify,
    on_server,
    on_transactions,
    tables,
    unreachable,
)

SERVER = (180_000, "UTF8", "on", "on", "on", False, "off", "me")
USABLE = [(name, True) for name in indexes()]
SOUND = Facts(
    schema="onejob",
    server=SERVER,
    rights=[(True, list(tables()), [])],
    version=migrate.known(),
    indexes=USABLE,
)


def only(found: Iterable[Finding]) -> tuple[str, str]:
    [finding] = list(found)
    assert finding.what.endswith(".")
    assert finding.remedy.endswith(".")
    return finding.level, finding.name


def facts(**changes: object) -> Facts:
    return Facts(**{name: changes.get(name, getattr(SOUND, name)) for name in SOUND.__struct_fields__})


def test_a_sound_store_has_nothing_wrong_with_it() -> None:
    assert findings(SOUND) == []
    assert {"job", "key", "flag"} <= set(tables())
    assert {"job_waiting", "job_chain"} <= indexes()


@pytest.mark.parametrize(
    ("place", "value", "finding"),
    [
        (0, 130_000, ("error", "old_server")),
        (1, "LATIN1", ("error", "encoding")),
        (2, "off", ("warning", "not_durable")),
        (3, "off", ("warning", "not_durable")),
        (4, "off", ("warning", "not_durable")),
        (5, True, ("error", "read_only")),
        (6, "on", ("error", "read_only")),
    ],
)
def test_a_server_that_cannot_keep_jobs(place: int, value: object, finding: tuple[str, str]) -> None:
    assert only(on_server((*SERVER[:place], value, *SERVER[place + 1 :]))) == finding


def test_a_schema_that_cannot_be_used() -> None:
    assert only(findings(facts(rights=[], version=0))) == ("error", "no_schema")
    assert only(findings(facts(rights=[(True, [], [])], version=0))) == ("error", "no_schema")
    assert only(findings(facts(rights=[(False, [], [])], version=0))) == ("error", "no_rights")
    assert only(findings(facts(rights=[(True, list(tables()), ["key"])], version=0))) == (
        "error",
        "no_rights",
    )
    assert only(findings(facts(version=migrate.known() + 1))) == ("error", "schema_newer")
    assert only(findings(facts(version="of an unknown kind"))) == ("error", "schema_newer")
    assert only(findings(facts(rights=[(True, ["meta"], [])], version=0))) == ("warning", "schema_older")
    assert only(findings(facts(rights=[(True, ["job"], [])], version=0))) == ("error", "not_ours")
    assert only(findings(facts(rights=[(True, list(tables())[1:], [])]))) == ("error", "missing_tables")


def test_an_older_schema_that_nobody_brings_up_to_date_by_himself() -> None:
    older = facts(version=migrate.known() - 1, migrates=False)
    assert only(findings(older)) == ("error", "schema_older")
    [finding] = findings(older)
    assert finding.blocking, "nothing else can be asked of such a store"
    assert "onejob migrate" in finding.remedy


def test_indexes_that_are_gone_or_half_built() -> None:
    assert only(findings(facts(indexes=USABLE[1:]))) == ("error", "missing_index")
    assert only(findings(facts(indexes=[(USABLE[0][0], False), *USABLE[1:]]))) == ("error", "invalid_index")


def test_what_others_do_to_it() -> None:
    assert only(on_transactions([("session", "7", "billing", "idle in transaction", 90)])) == (
        "warning",
        "long_transaction",
    )
    assert only(on_transactions([("prepared", "gid", "me", None, 90)])) == ("warning", "long_transaction")
    assert only(on_transactions([("slot", "copy", "not in use", None, 5)])) == ("warning", "long_transaction")
    [wait] = on_lock_waits([(7, "a", 6, 8, None, None, None)])
    assert "Session 7 (a) has waited 6 s for a lock on our tables, which session 8 holds" in wait.what


def test_whom_one_cannot_see_is_said_once_for_all_where_dead_rows_stay() -> None:
    assert findings(facts(unseen=(1, ["billing"]))) == []
    bloat = [("job", 10, MANY_DEAD, 2**20, None, True)]
    [_, one] = findings(facts(unseen=(1, ["billing"]), bloat=bloat))
    assert (one.level, one.name) == ("warning", "unseen_sessions")
    assert one.what.startswith("1 session of other users (billing) cannot be looked into")
    assert one.remedy == "As a superuser: grant pg_read_all_stats to me."
    [_, many] = findings(facts(unseen=(9, [*"abcdefg"]), bloat=bloat))
    assert many.what.startswith("9 sessions of other users (a, b, c, d, e, …) cannot")


def test_dead_rows_count_once_they_are_many_and_more_than_the_live_ones() -> None:
    assert only(on_bloat([("job", 10, MANY_DEAD, 2**20, None, True)])) == ("warning", "bloat")
    assert only(on_bloat([("job", 10, MANY_DEAD, 2**20, 90, False)])) == ("warning", "bloat")
    assert list(on_bloat([("job", 10, MANY_DEAD - 1, 0, None, True)])) == []
    assert list(on_bloat([("job", MANY_DEAD, MANY_DEAD, 0, None, True)])) == []


def test_notifications_are_missed_only_if_they_were_seen_not_to_come() -> None:
    assert only(on_notify(works=False)) == ("warning", "no_notify")
    assert [*on_notify(works=True), *on_notify(works=None)] == []


def test_the_worst_comes_first() -> None:
    names = [found.name for found in findings(facts(notify_works=False, stranded=1))]
    assert names == ["stranded", "no_notify"]
    assert unreachable(OSError("gone")).blocking


def test_only_who_does_not_answer_is_to_be_started() -> None:
    assert "Start the server" in unreachable(StoreUnavailable("gone")).remedy
    assert "Start the server" not in unreachable(OnejobError("no such database")).remedy
