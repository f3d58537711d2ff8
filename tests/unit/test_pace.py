"""A worker's own rate: no window of its length, wherever it is laid, holds more starts than the maximum."""

from __future__ import annotations

import random

import pytest

from onejob import Rate
from onejob.worker.pace import Pace


class Time:
    def __init__(self) -> None:
        self.now = 1_000.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def time() -> Time:
    return Time()


def test_the_window_is_half_open(time: Time) -> None:
    pace = Pace(Rate(2, per=10), time)
    assert pace.room() == 2
    pace.note(1)
    time.now += 4
    pace.note(1)
    assert (pace.room(), pace.opens_in()) == (0, 6)
    time.now += 5.999
    assert pace.room() == 0
    time.now = 1_010.0
    assert (pace.room(), pace.opens_in()) == (1, 4)
    pace.note(1)
    assert (pace.room(), pace.opens_in()) == (0, 4)


def test_nothing_started_is_an_open_window(time: Time) -> None:
    pace = Pace(Rate(5, per=1), time)
    pace.note(0)
    assert (pace.room(), pace.opens_in()) == (5, 0)


def test_no_window_holds_too_many_starts_wherever_between_asking_and_reply_they_happened(time: Time) -> None:
    chance = random.Random(7)
    pace = Pace(Rate(7, per=3), time)
    starts: list[float] = []
    for _ in range(3_000):
        asked, room = time.now, pace.room()
        taken = chance.randint(0, room)
        time.now += chance.choice([0, 0.001, 0.2])
        starts += sorted(chance.uniform(asked, time.now) for _ in range(taken))
        pace.note(taken)
        time.now += pace.opens_in() if not pace.room() and chance.random() < 0.8 else chance.uniform(0, 0.3)
    assert len(starts) > 2_000
    for first, eighth in zip(starts, starts[7:], strict=False):
        assert eighth - first >= 3 - 1e-9
