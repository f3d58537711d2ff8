"""Every known bug is noticed: by the conformance suite, or else by the state machine within few examples."""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Callable, Iterator, Sequence
from itertools import product
from typing import Any

import chain_mutants
import lane_mutants
import pytest
import schedule_mutants
from hypothesis import Phase, settings
from hypothesis.stateful import run_state_machine_as_test
from machine import StoreBesideModel
from mutants import JUDGEMENTS, STORES, ErringStore, Switch
from schedule_machine import SchedulesBesideModel

from onejob.core.errors import OnejobError
from onejob.store import JobStore
from onejob.stores import open_store
from onejob.testing import conformance
from onejob.testing.clock import FakeClock

Open = Callable[[FakeClock], JobStore]

LONG = 3_000
HUNT = settings(
    stateful_step_count=8,
    derandomize=True,
    database=None,
    deadline=None,
    phases=[Phase.generate],
    suppress_health_check=list(settings().suppress_health_check),
)
HEART = [
    conformance.TestCorners,
    conformance.TestEnqueue,
    conformance.TestSettle,
    conformance.TestExpired,
    conformance.TestRevoke,
    conformance.TestRetry,
    conformance.TestDelete,
    conformance.TestPrune,
    conformance.TestClaim,
]
TRAFFIC = [
    conformance.TestLanes,
    conformance.TestSlots,
    conformance.TestRetriesInLanes,
    conformance.TestRates,
    conformance.TestGates,
    conformance.TestLaneLimits,
    conformance.TestDuplicatesInLanes,
    conformance.TestQueueLimits,
    conformance.TestPause,
    conformance.TestDead,
    conformance.TestRetryOfTheDead,
]
CHAINS = [
    conformance.TestChains,
    conformance.TestKeysOfChains,
    conformance.TestChainsAsAWhole,
    conformance.TestCancelledChains,
    conformance.TestPruneOfChains,
    conformance.TestDeadChains,
    conformance.TestTakenPlaces,
    conformance.TestStrandedHolders,
    conformance.TestRepeatedCallsWithBlockers,
    conformance.TestBlockers,
    conformance.TestBlockersOfContinuations,
    conformance.TestDeletingBlockers,
    conformance.TestFailedBlockers,
]
SCHEDULES = [
    conformance.TestPutSchedules,
    conformance.TestDue,
    conformance.TestFire,
    conformance.TestFireAgainstChanges,
    conformance.TestSlotsAndPolicies,
]


def conforms(opened: Open, suites: list[type]) -> bool:
    """Run the suites until a test fails."""
    try:
        for suite in suites:
            for name, test in inspect.getmembers(suite, inspect.iscoroutinefunction):
                if name.startswith("test_"):
                    for case in cases(suite, test):
                        run_one(opened, getattr(suite(), name), case)
    except AssertionError:
        return False
    return True


def cases(suite: type, test: Any) -> Iterator[dict[str, Any]]:
    """The sets of arguments that a test is parametrised with, by itself or with its whole suite."""
    axes: list[list[dict[str, Any]]] = []
    for mark in (*getattr(suite, "pytestmark", ()), *getattr(test, "pytestmark", ())):
        if mark.name != "parametrize":
            continue
        names, values = mark.args[:2]
        if isinstance(names, str):
            axes.append([{names: value} for value in values])
        else:
            axes.append([dict(zip(names, value, strict=True)) for value in values])
    for chosen in product(*axes):
        yield {name: value for part in chosen for name, value in part.items()}


def run_one(opened: Open, test: Callable[..., Any], case: dict[str, Any]) -> None:
    """Run one case on a store of its own."""
    clock = FakeClock()
    store = opened(clock)
    given = {"store": store, "clock": clock, **case}

    async def run() -> None:
        try:
            await test(**{name: given[name] for name in inspect.signature(test).parameters})
        finally:
            await store.close()

    asyncio.run(run())


def agrees_with_the_model(
    opened: Open, examples: int = 400, machine: type[StoreBesideModel] = StoreBesideModel
) -> bool:
    """Run the machine until it fails; a store that finds its own rows amiss has been caught, too."""
    hunt = type("Hunt", (machine,), {"open_store": staticmethod(opened)})
    try:
        run_state_machine_as_test(hunt, settings=settings(HUNT, max_examples=examples))
    except (AssertionError, OnejobError):
        return False
    return True


def open_right(clock: FakeClock) -> JobStore:
    return open_store("memory:", clock=clock)


def some(mutants: Sequence[Any]) -> list[Any]:
    """Every third of them; `make torture` has the others. They try the tests, and not what is tested."""
    return [
        pytest.param(mutant, marks=() if place % 3 == 0 else pytest.mark.torture)
        for place, mutant in enumerate(mutants)
    ]


def test_the_right_store_conforms() -> None:
    assert conforms(open_right, [*HEART, *TRAFFIC, *CHAINS, *SCHEDULES])


def opens(erring: type[ErringStore]) -> Open:
    def opened(clock: FakeClock) -> JobStore:
        store = erring(None, clock=clock)
        store.clock = clock
        return store

    return opened


@pytest.mark.parametrize("erring", some(STORES), ids=lambda erring: erring.__name__)
def test_a_store_that_errs_is_caught(erring: type[ErringStore]) -> None:
    assert not conforms(opens(erring), HEART) or not agrees_with_the_model(opens(erring))


@pytest.mark.parametrize("switch", some(JUDGEMENTS), ids=lambda switch: switch.__name__)
def test_a_judgement_that_errs_is_caught(switch: Switch, monkeypatch: pytest.MonkeyPatch) -> None:
    switch(monkeypatch)
    assert not conforms(open_right, HEART) or not agrees_with_the_model(open_right)


@pytest.mark.parametrize("erring", some(lane_mutants.STORES), ids=lambda erring: erring.__name__)
def test_a_store_that_errs_with_lanes_is_caught(erring: type[ErringStore]) -> None:
    assert not conforms(opens(erring), TRAFFIC) or not agrees_with_the_model(opens(erring))


@pytest.mark.parametrize("switch", some(lane_mutants.SWITCHES), ids=lambda switch: switch.__name__)
def test_lanes_that_err_are_caught(switch: Switch, monkeypatch: pytest.MonkeyPatch) -> None:
    switch(monkeypatch)
    assert not conforms(open_right, TRAFFIC) or not agrees_with_the_model(open_right)


@pytest.mark.parametrize("erring", some(chain_mutants.STORES), ids=lambda erring: erring.__name__)
def test_a_store_that_errs_with_chains_is_caught(erring: type[ErringStore]) -> None:
    assert not conforms(opens(erring), CHAINS) or not agrees_with_the_model(opens(erring))


@pytest.mark.parametrize("switch", some(chain_mutants.SWITCHES), ids=lambda switch: switch.__name__)
def test_chains_that_err_are_caught(switch: Switch, monkeypatch: pytest.MonkeyPatch) -> None:
    switch(monkeypatch)
    assert not conforms(open_right, CHAINS) or not agrees_with_the_model(open_right)


def keeps_to_its_times(opened: Open, examples: int = 400) -> bool:
    return agrees_with_the_model(opened, examples, SchedulesBesideModel)


@pytest.mark.parametrize("erring", some(schedule_mutants.STORES), ids=lambda erring: erring.__name__)
def test_a_store_that_errs_with_schedules_is_caught(erring: type[ErringStore]) -> None:
    assert not conforms(opens(erring), SCHEDULES) or not keeps_to_its_times(opens(erring))


@pytest.mark.parametrize("switch", some(schedule_mutants.SWITCHES), ids=lambda switch: switch.__name__)
def test_schedules_that_err_are_caught(switch: Switch, monkeypatch: pytest.MonkeyPatch) -> None:
    switch(monkeypatch)
    assert not conforms(open_right, SCHEDULES) or not keeps_to_its_times(open_right)


@pytest.mark.torture
@pytest.mark.parametrize("erring", schedule_mutants.STORES, ids=lambda erring: erring.__name__)
def test_the_state_machine_alone_catches_a_store_that_errs_with_schedules(erring: type[ErringStore]) -> None:
    assert not keeps_to_its_times(opens(erring), LONG)


@pytest.mark.torture
@pytest.mark.parametrize("switch", schedule_mutants.SWITCHES, ids=lambda switch: switch.__name__)
def test_the_state_machine_alone_catches_schedules_that_err(
    switch: Switch, monkeypatch: pytest.MonkeyPatch
) -> None:
    switch(monkeypatch)
    assert not keeps_to_its_times(open_right, LONG)


@pytest.mark.torture
@pytest.mark.parametrize(
    "erring", [*STORES, *lane_mutants.STORES, *chain_mutants.STORES], ids=lambda erring: erring.__name__
)
def test_the_state_machine_alone_catches_a_store_that_errs(erring: type[ErringStore]) -> None:
    assert not agrees_with_the_model(opens(erring), LONG)


@pytest.mark.torture
@pytest.mark.parametrize(
    "switch",
    [*JUDGEMENTS, *lane_mutants.SWITCHES, *chain_mutants.SWITCHES],
    ids=lambda switch: switch.__name__,
)
def test_the_state_machine_alone_catches_rules_that_err(
    switch: Switch, monkeypatch: pytest.MonkeyPatch
) -> None:
    switch(monkeypatch)
    assert not agrees_with_the_model(open_right, LONG)
