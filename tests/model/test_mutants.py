"""The state machine notices every known bug, within few examples."""

from __future__ import annotations

import pytest
from hypothesis import Phase, settings
from hypothesis.stateful import run_state_machine_as_test
from machine import StoreBesideModel
from mutants import JUDGEMENTS, STORES, ErringStore, Switch

from onejob.store import JobStore
from onejob.stores import open_store
from onejob.testing.clock import FakeClock

HUNT = settings(
    max_examples=400,
    stateful_step_count=30,
    derandomize=True,
    database=None,
    deadline=None,
    phases=[Phase.generate],
    suppress_health_check=list(settings().suppress_health_check),
)


def hunt(opened: staticmethod) -> None:
    """Run the machine until it fails."""
    machine = type("Hunt", (StoreBesideModel,), {"open_store": opened})
    run_state_machine_as_test(machine, settings=HUNT)


@pytest.mark.parametrize("erring", STORES, ids=lambda erring: erring.__name__)
def test_a_store_that_errs_is_caught(erring: type[ErringStore]) -> None:
    def opened(clock: FakeClock) -> JobStore:
        store = erring(None, clock=clock)
        store.clock = clock
        return store

    with pytest.raises(AssertionError):
        hunt(staticmethod(opened))


@pytest.mark.parametrize("switch", JUDGEMENTS, ids=lambda switch: switch.__name__)
def test_a_judgement_that_errs_is_caught(switch: Switch, monkeypatch: pytest.MonkeyPatch) -> None:
    switch(monkeypatch)
    with pytest.raises(AssertionError):
        hunt(staticmethod(lambda clock: open_store("memory:", clock=clock)))
