"""The stock: how much of it is worth while, and what has been in it for too long."""

from __future__ import annotations

from types import SimpleNamespace
from typing import cast

import pytest

from onejob import App
from onejob.worker.attempt import Attempt
from onejob.worker.stock import HORIZON, PATIENCE, Stock

SLOTS, MOST = 10, 40


@pytest.fixture
def stock() -> Stock:
    return Stock(SLOTS, MOST)


def came(stock: Stock, *instants: float) -> list[Attempt]:
    """Attempts that came then."""
    attempts = [cast("Attempt", SimpleNamespace(since=since)) for since in instants]
    stock.waiting.extend(attempts)
    return attempts


def learn(stock: Stock, seconds: float, times: int = 1_000) -> None:
    for _ in range(times):
        stock.learn(seconds)


def test_nothing_is_claimed_ahead_before_handlers_are_known_to_be_quick(stock: Stock) -> None:
    assert stock.size == 0
    learn(stock, 0.0, times=100)
    assert stock.size == 0
    learn(stock, 0.0, times=300)
    assert stock.size == MOST


@pytest.mark.parametrize(
    ("seconds", "size"),
    [
        (HORIZON / 100, MOST),
        (HORIZON / 5, MOST),
        (HORIZON / 2.1, 20),
        (HORIZON * 0.99, SLOTS),
        (HORIZON * 1.01, 0),
        (1.0, 0),
    ],
)
def test_as_much_as_handlers_take_up_within_the_horizon(stock: Stock, seconds: float, size: int) -> None:
    learn(stock, seconds, times=5_000)
    assert stock.size == size


def test_one_slow_handler_among_quick_ones_stops_it_for_a_while(stock: Stock) -> None:
    learn(stock, 0.001)
    stock.learn(2.0)
    assert stock.size == 0
    learn(stock, 0.001, times=100)
    assert stock.size > 0


def test_who_came_first_begins_first(stock: Stock) -> None:
    first, second, third = came(stock, 1.0, 1.0, 2.0)
    assert stock.take(2) == [first, second]
    assert stock.take(2) == [third]
    assert stock.take(2) == []


def test_what_has_waited_for_too_long_is_late_and_nothing_is_claimed_ahead_after_it(stock: Stock) -> None:
    learn(stock, 0.0)
    early, late = came(stock, 100.0, 100.0 + PATIENCE / 2)
    assert (stock.take_late(100.0 + PATIENCE * 0.9), stock.size) == ([], MOST)
    assert (stock.take_late(100.0 + PATIENCE * 1.1), stock.size) == ([early], 0)
    assert list(stock.waiting) == [late]


def test_who_wants_none_has_none() -> None:
    stock = Stock(SLOTS, 0)
    learn(stock, 0.0)
    assert stock.size == 0


@pytest.mark.parametrize(("slots", "most"), [(1, 100), (10, 100), (25, 100), (26, 104), (100, 400)])
def test_few_slots_have_a_stock_worth_a_call(slots: int, most: int) -> None:
    """What a call costs a store hardly depends on how many jobs it brings, nor on how many slots a worker has."""
    settings = App("sqlite:///never-opened.db").worker(concurrency=slots).settings
    assert settings.stock == most
    stock = Stock(slots, settings.stock)
    learn(stock, 1e-6)
    assert stock.size == most


def test_with_one_slot_too_it_is_no_more_than_what_begins_within_the_horizon() -> None:
    stock = Stock(1, 100)
    learn(stock, HORIZON / 10, times=5_000)
    assert 9 <= stock.size <= 10
