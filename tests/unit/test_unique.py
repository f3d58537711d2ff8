"""The verdict table: every preset as DESIGN.md states it, the overrides, and every policy that makes no sense."""

import copy
import datetime as dt
import itertools
import math
import pickle
from typing import Any, get_args

import pytest

from onejob.core.dedup import (
    APP_WINDOW,
    FOREVER,
    QueuedVerdict,
    Rules,
    Standing,
    Unique,
    Verdict,
    check_key,
    compile_rules,
    decode_rules,
    forced,
    standing,
)
from onejob.core.errors import InvalidOption
from onejob.core.job import State


def rules_of(policy: Unique, app_window: int | None = None) -> Rules:
    rules = compile_rules(policy, app_window)
    assert rules is not None
    return rules


# Columns: queued, running, running and own, completed, failed or revoked; inside the window, then outside.
TABLE = [
    ("in_flight", Unique.in_flight(), "keep keep follow run run", "run run run run run"),
    ("in_flight within", Unique.in_flight(5), "keep keep follow run run", "run run run run run"),
    ("bare", Unique(), "keep keep follow run run", "run run run run run"),
    ("once", Unique.once(), "keep keep follow keep run", "run run run run run"),
    ("once within", Unique.once(within=5), "keep keep follow keep run", "run run run run run"),
    ("throttle", Unique.throttle(5), "keep keep follow keep keep", "run run run run run"),
    ("trailing", Unique.throttle(5, trailing=True), "update later later later later", "run run run run run"),
    ("coalesce", Unique.coalesce(), "keep follow follow run run", "follow follow follow run run"),
    ("coalesce within", Unique.coalesce(5), "keep follow follow run run", "follow follow follow run run"),
    ("latest", Unique.latest(), "update follow follow run run", "follow follow follow run run"),
    ("latest within", Unique.latest(5), "update follow follow run run", "follow follow follow run run"),
    ("debounce", Unique.debounce(1), "postpone follow follow run run", "run run run run run"),
    ("collect", Unique.collect(), "collect follow follow run run", "run run run run run"),
    ("restart", Unique.restart(), "cancel cancel follow run run", "run run run run run"),
]


@pytest.mark.accepts("Q3", "Q6", "F1", "G24", "G25", "G26")
@pytest.mark.parametrize(
    ("policy", "inside", "outside"), [row[1:] for row in TABLE], ids=[row[0] for row in TABLE]
)
def test_each_preset_is_its_row_of_the_table(policy: Unique, inside: str, outside: str) -> None:
    rules = rules_of(policy)
    window = rules.window if rules.window is not None else FOREVER
    assert [rules.verdict(column, 0).word for column in Standing] == inside.split()
    assert [rules.verdict(column, window - 1).word for column in Standing] == inside.split()
    letters = {verdict.word: verdict.value for verdict in Verdict}
    assert rules.table == "".join(letters[word] for word in (inside + " " + outside).split())
    if rules.window is not None:
        assert [rules.verdict(column, window).word for column in Standing] == outside.split()


def test_the_letters_of_a_compiled_table_never_change() -> None:
    assert {verdict.word: verdict.value for verdict in Verdict} == {
        "run": "r",
        "keep": "k",
        "update": "u",
        "postpone": "p",
        "collect": "c",
        "follow": "f",
        "later": "l",
        "cancel": "x",
        "raise": "!",
    }
    assert [column.value for column in Standing] == [0, 1, 2, 3, 4]


@pytest.mark.accepts("N13")
def test_a_window_is_half_open() -> None:
    rules = rules_of(Unique.in_flight(within=5))
    assert rules.window == 5_000
    assert rules.verdict(Standing.QUEUED, 4_999) is Verdict.KEEP
    assert rules.verdict(Standing.QUEUED, 5_000) is Verdict.RUN
    assert rules.verdict(Standing.QUEUED, -1) is Verdict.KEEP


@pytest.mark.accepts("Q7")
def test_no_window_is_no_limit() -> None:
    assert rules_of(Unique.once()).verdict(Standing.COMPLETED, FOREVER) is Verdict.KEEP


@pytest.mark.accepts("Q4")
def test_every_state_has_its_column() -> None:
    assert {state: standing(state) for state in State} == {
        State.BLOCKED: Standing.QUEUED,
        State.DELAYED: Standing.QUEUED,
        State.PARKED: Standing.QUEUED,
        State.WAITING: Standing.QUEUED,
        State.RUNNING: Standing.RUNNING,
        State.COMPLETED: Standing.COMPLETED,
        State.FAILED: Standing.FAILED,
        State.REVOKED: Standing.FAILED,
    }
    assert standing(State.RUNNING, own=True) is Standing.OWN
    assert standing(State.WAITING, own=True) is Standing.QUEUED


def test_verdicts_that_make_a_job() -> None:
    assert {verdict.word for verdict in Verdict if verdict.creates} == {"run", "follow", "later", "cancel"}


ALLOWED = {
    "queued": set(get_args(QueuedVerdict)),
    "running": {"run", "keep", "follow", "later", "cancel", "raise"},
    "completed": {"run", "keep", "later", "raise"},
    "failed": {"run", "keep", "later", "raise"},
}


def override(column: str, word: Any) -> Unique:
    delaying = {"wait": 1} if word in ("postpone", "collect") else {}
    collecting = {"into": "items"} if word == "collect" else {}
    return Unique(within=60, **delaying, **collecting, **{column: word})


@pytest.mark.parametrize(("column", "word"), list(itertools.product(ALLOWED, get_args(QueuedVerdict))))
def test_a_column_takes_the_verdicts_that_make_sense_for_it(column: str, word: Any) -> None:
    if word not in ALLOWED[column]:
        with pytest.raises(
            InvalidOption, match=f"{column}='{word}' makes no sense: a {column} holder allows"
        ):
            override(column, word)
        return
    rules = rules_of(override(column, word))
    assert rules.verdict(Standing[column.upper()], 0).word == word
    others = {
        Standing.QUEUED: "keep",
        Standing.RUNNING: "keep",
        Standing.COMPLETED: "run",
        Standing.FAILED: "run",
    }
    del others[Standing[column.upper()]]
    assert {other: rules.verdict(other, 0).word for other in others} == others


@pytest.mark.parametrize("column", ALLOWED)
@pytest.mark.parametrize("word", ["", "KEEP", "k", "drop", 1, True, Verdict.KEEP, ["keep"]], ids=repr)
def test_a_column_takes_nothing_but_verdicts(column: str, word: Any) -> None:
    with pytest.raises(InvalidOption, match=f"{column}="):
        override(column, word)


@pytest.mark.parametrize(
    ("running", "own"),
    [
        ("keep", "follow"),
        ("raise", "follow"),
        ("cancel", "follow"),
        ("run", "run"),
        ("later", "later"),
        ("follow", "follow"),
    ],
)
def test_for_a_caller_inside_the_holder_keep_raise_and_cancel_become_follow(running: Any, own: str) -> None:
    rules = rules_of(Unique(within=60, running=running, hold=True))
    assert rules.verdict(Standing.OWN, 0).word == own
    assert rules.verdict(Standing.OWN, 60_000).word == ("follow" if own == "later" else own)


def test_past_its_window_a_held_holder_is_followed_instead_of_waited_for() -> None:
    rules = rules_of(Unique.throttle(1, trailing=True, hold=True))
    assert rules.verdict(Standing.RUNNING, 999).word == "later"
    assert rules.verdict(Standing.RUNNING, 1000).word == "follow"
    assert rules.verdict(Standing.COMPLETED, 1000).word == "run"


@pytest.mark.parametrize("settings", [{"wait": 1}, {"max_wait": 1}, {"into": "items"}])
def test_settings_that_no_verdict_uses_are_refused(settings: dict[str, Any]) -> None:
    with pytest.raises(InvalidOption, match="need"):
        Unique(**settings)


@pytest.mark.parametrize("name", ["hold", "overlap"])
def test_switches_are_true_or_false(name: str) -> None:
    with pytest.raises(InvalidOption, match=f"{name}=… must be True or False"):
        Unique(**{name: 1})


@pytest.mark.accepts("Q6", "G24")
def test_overrides_go_with_every_preset() -> None:
    assert rules_of(Unique.once(failed="keep")).table == "kkfkkrrrrr"
    assert rules_of(Unique.in_flight(running="raise")).table == "k!frrrrrrr"
    assert rules_of(Unique.throttle(1, failed="run")).table == "kkfkrrrrrr"
    assert rules_of(Unique.throttle(1, trailing=True, queued="keep")).table == "kllllrrrrr"
    assert rules_of(Unique.coalesce(completed="keep")).table == "kffkrfffrr"
    assert rules_of(Unique.latest(running="run")).table == "urrrrfffrr"
    assert rules_of(Unique.debounce(1, running="keep")).table == "pkfrrrrrrr"
    assert rules_of(Unique.collect(failed="raise")).table == "cffr!rrrrr"
    assert rules_of(Unique.restart(queued="keep")).table == "kxfrrrrrrr"


def test_overlap_turns_follow_into_run_inside_and_outside() -> None:
    assert rules_of(Unique.latest(5, overlap=True)).table == "urrrrrrrrr"
    assert rules_of(Unique.coalesce(5, overlap=True)).table == "krrrrrrrrr"
    assert rules_of(Unique.debounce(5, overlap=True)).table == "prrrrrrrrr"
    assert rules_of(Unique.in_flight(5, overlap=True)).table == "kkfrrrrrrr"


def test_hold_keeps_the_key_of_a_live_holder_past_the_window() -> None:
    assert rules_of(Unique.in_flight(5, hold=True)).table == "kkfrrkkfrr"
    assert rules_of(Unique.once(5, hold=True)).table == "kkfkrkkfrr"
    assert rules_of(Unique.latest(5, hold=True)).table == "uffrruffrr"
    assert rules_of(Unique.latest(5, hold=True, overlap=True)).table == "urrrrurrrr"


@pytest.mark.accepts("F16")
def test_force_makes_every_cell_run_and_leaves_what_is_remembered() -> None:
    rules = rules_of(Unique.once(within=5, failed="keep"))
    made = forced(rules)
    assert {made.verdict(column, age) for column in Standing for age in (0, 10_000)} == {Verdict.RUN}
    assert made.forget_at(Standing.COMPLETED, 100) == rules.forget_at(Standing.COMPLETED, 100) == 5_100


def test_a_key_is_remembered_after_the_end_only_where_the_cell_is_not_run() -> None:
    once, always = rules_of(Unique.once(within=5)), rules_of(Unique.once(failed="raise"))
    assert once.forget_at(Standing.COMPLETED, 100) == 5_100
    assert once.forget_at(Standing.FAILED, 100) is None
    assert always.forget_at(Standing.COMPLETED, 100) == FOREVER
    assert always.forget_at(Standing.FAILED, 100) == FOREVER
    assert rules_of(Unique.in_flight(5)).forget_at(Standing.COMPLETED, 0) is None


@pytest.mark.accepts("N2", "N3", "N22", "N29")
@pytest.mark.parametrize("window", [0, -1, -0.5, dt.timedelta(0), dt.timedelta(seconds=-1)])
def test_a_window_of_zero_or_less_turns_deduplication_off(window: Any) -> None:
    for policy in (
        Unique.in_flight(window),
        Unique.once(window),
        Unique.throttle(window),
        Unique.throttle(window, trailing=True),
        Unique.coalesce(window),
        Unique.latest(window, hold=True),
    ):
        assert compile_rules(policy, None) is None


@pytest.mark.accepts("N1", "N20", "N30")
def test_the_apps_window_stands_in_for_app_window() -> None:
    policy = Unique.latest(within=APP_WINDOW)
    for window in (5_000, 30_000, 60_000):
        assert rules_of(policy, window).window == window
    assert compile_rules(policy, 0) is None
    assert compile_rules(policy, -1) is None
    assert compile_rules(Unique.throttle(APP_WINDOW), 0) is None
    assert rules_of(Unique.latest(within=3), 5_000).window == 3_000
    assert rules_of(Unique.latest(), 5_000).window is None
    with pytest.raises(InvalidOption, match=r"needs a window: give App\(window=…\) or set \$ONEJOB_WINDOW"):
        compile_rules(policy, None)
    assert repr(APP_WINDOW) == "onejob.APP_WINDOW"


def test_windows_and_waits_are_kept_in_milliseconds() -> None:
    assert rules_of(Unique.once(dt.timedelta(hours=24))).window == 86_400_000
    debounced = rules_of(Unique.debounce(0.5, max_wait=dt.timedelta(seconds=3)))
    assert (debounced.wait, debounced.max_wait, debounced.window) == (500, 3_000, None)
    collecting = rules_of(Unique.collect("rows", wait=2, max_items=7))
    assert (collecting.wait, collecting.max_items) == (2_000, 7)
    assert rules_of(Unique.in_flight()).max_items == 0
    assert rules_of(Unique.once(mismatch="raise")).strict


def test_rules_come_back_from_their_stored_form() -> None:
    for _, policy, _, _ in TABLE:
        rules = rules_of(policy)
        assert decode_rules(rules.encoded) == rules
    assert rules_of(Unique.in_flight()).encoded == b'{"table":"kkfrrrrrrr"}'


def test_a_policy_says_whether_it_delays() -> None:
    assert [name for name, policy, _, _ in TABLE if policy.delays] == ["debounce", "collect"]


BAD_SPANS = [True, "5", math.nan, math.inf, -math.inf, 1e300, 10**400, dt.timedelta.max, [5]]


@pytest.mark.parametrize("span", BAD_SPANS, ids=lambda span: repr(span)[:12])
def test_spans_that_are_none_are_refused(span: Any) -> None:
    for make in (
        lambda: Unique.in_flight(span),
        lambda: Unique.throttle(span),
        lambda: Unique.debounce(span),
        lambda: Unique.debounce(1, max_wait=span),
        lambda: Unique.collect(wait=span),
    ):
        with pytest.raises(InvalidOption):
            make()


REFUSED: list[tuple[Any, str]] = [
    (lambda: Unique.throttle(None), "needs a number of seconds, not None"),
    (lambda: Unique.throttle(None, trailing=True), "needs a number of seconds, not None"),
    (lambda: Unique.debounce(0), "postpone needs wait="),
    (lambda: Unique.debounce(-1), "wait must be at least 0 seconds"),
    (lambda: Unique.debounce(5, max_wait=4), "max_wait must be at least 5 seconds"),
    (lambda: Unique.debounce(5, max_wait=0), "max_wait must be at least 5 seconds"),
    (lambda: Unique(queued="postpone"), "postpone needs wait="),
    (lambda: Unique(queued="collect"), "collect needs into="),
    (lambda: Unique.collect(into=""), "collect needs into="),
    (lambda: Unique.collect(wait=-1), "wait must be at least 0 seconds"),
    (lambda: Unique.collect(max_items=0), "max_items must be a whole number from 1 to 10000"),
    (lambda: Unique.collect(max_items=10_001), "max_items must be a whole number"),
    (lambda: Unique.collect(max_items=True), "max_items must be a whole number"),
    (lambda: Unique.in_flight(running="later"), "later needs a window"),
    (lambda: Unique.once(failed="later"), "later needs a window"),
    (lambda: Unique.latest(scope="queue"), 'scope="queue" cannot update'),
    (lambda: Unique.debounce(1, scope="queue"), 'scope="queue" cannot postpone'),
    (lambda: Unique.collect(scope="queue"), 'scope="queue" cannot collect'),
    (lambda: Unique.throttle(1, trailing=True, scope="queue"), 'scope="queue" cannot update'),
    (lambda: Unique(queued="update", scope="queue"), 'scope="queue" cannot update'),
    (lambda: Unique(scope="world"), '"task" or "queue", not \'world\''),  # type: ignore[arg-type]
    (lambda: Unique(mismatch="ignore"), '"tell" or "raise", not \'ignore\''),  # type: ignore[arg-type]
    (lambda: Unique.restart(mismatch="raise"), "this policy never keeps a holder"),
    (lambda: Unique.latest(mismatch="raise"), "this policy never keeps a holder"),
    (lambda: Unique(by="a", key="b"), "exclude each other"),
    (lambda: Unique(by=(), key=None), "exclude each other"),
    (lambda: Unique(by=5), "takes names of arguments or a function, not 5"),  # type: ignore[arg-type]
    (lambda: Unique(by=("a", 5)), "not 5"),  # type: ignore[arg-type]
    (lambda: Unique(by=""), "not ''"),
    (lambda: Unique(by="a.b"), "not 'a.b'"),
    (lambda: Unique(by=("a", "b c")), "not 'b c'"),
    (lambda: Unique(by=b"ab"), "takes names of arguments"),  # type: ignore[arg-type]
    (lambda: Unique(key=5), "must be a string or None, not 5"),  # type: ignore[arg-type]
    (lambda: Unique(key=b"a"), "must be a string or None"),  # type: ignore[arg-type]
    (lambda: Unique(key=""), "A key must be 1 to 1024 characters"),
]


@pytest.mark.parametrize(("make", "words"), REFUSED, ids=[str(number) for number in range(len(REFUSED))])
def test_a_senseless_policy_is_refused_when_it_is_made(make: Any, words: str) -> None:
    with pytest.raises(InvalidOption) as caught:
        make()
    assert words in str(caught.value)


def test_scope_queue_goes_with_policies_that_leave_the_holder_as_it_is() -> None:
    for policy in (
        Unique.in_flight(scope="queue"),
        Unique.once(scope="queue"),
        Unique.restart(scope="queue"),
    ):
        assert policy.scope == "queue"


def test_by_is_kept_as_names_in_their_order_or_as_the_function() -> None:
    assert Unique(by="entity_id").by == ("entity_id",)
    assert Unique(by=["b", "a"]).by == ("b", "a")
    assert Unique(by=(name for name in ("x", "y"))).by == ("x", "y")
    assert Unique(by=()).by == ()
    assert Unique(by=len).by is len


def test_a_set_of_names_has_the_same_order_in_every_process() -> None:
    assert Unique(by={"delta", "alpha", "charlie", "bravo"}).by == ("alpha", "bravo", "charlie", "delta")
    assert Unique(by=frozenset({"b", "a"})).by == ("a", "b")


def test_a_policy_is_a_value() -> None:
    assert Unique.once(within=5) == Unique.once(within=5)
    assert Unique.once(within=5) != Unique.in_flight(within=5)
    assert len({Unique.latest(by="a"), Unique.latest(by=("a",))}) == 1
    with pytest.raises(AttributeError):
        Unique().within = 5  # type: ignore[misc]


def test_a_copied_policy_is_the_same_policy() -> None:
    policy = Unique.once(within=APP_WINDOW)
    assert copy.deepcopy(policy) == pickle.loads(pickle.dumps(policy)) == policy


@pytest.mark.parametrize(
    "key", ["a", " ", "x" * 1024, "é" * 1024, "a\nb", "a/b:c", "{tag}", "\U0001f600"], ids=ascii
)
def test_a_key_is_any_text_of_1_to_1024_characters(key: str) -> None:
    assert check_key(key) == key
    assert Unique(key=key).key == key


@pytest.mark.parametrize("key", ["", "x" * 1025, "a\0b", "\0", "\ud800", "a\udfff"], ids=ascii)
def test_a_key_that_not_every_store_can_hold_is_refused(key: str) -> None:
    with pytest.raises(InvalidOption) as caught:
        check_key(key)
    assert str(caught.value).startswith(
        "A key must be 1 to 1024 characters without NUL or lone surrogates, not "
    )
    assert str(caught.value).isprintable()
    with pytest.raises(InvalidOption):
        Unique(key=key)


def test_a_key_of_none_means_not_unique_and_is_no_error() -> None:
    assert Unique(key=None).key is None
