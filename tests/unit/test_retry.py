"""Retry curves: how long each failure waits, and what is refused."""

import math
from typing import Any

import pytest

from onejob.core.errors import InvalidOption
from onejob.core.retry import MAX_SECONDS, Exponential, Fixed, Retry, is_never


class TooEarly(ValueError):
    pass


def waits(backoff: Exponential | Fixed, failures: int = 5, roll: float = 0.5) -> list[float]:
    return [backoff.seconds(failure, roll) for failure in range(1, failures + 1)]


@pytest.mark.accepts("G45")
def test_exponential_waits_one_two_four_eight_seconds() -> None:
    assert waits(Exponential()) == [1, 2, 4, 8, 16]
    assert waits(Exponential(0.5, factor=3), 3) == [0.5, 1.5, 4.5]


def test_exponential_stops_growing_at_its_maximum_and_never_overflows() -> None:
    assert waits(Exponential(max=5.0)) == [1, 2, 4, 5, 5]
    assert Exponential().seconds(1_000, 0.5) == 24 * 3600
    assert Exponential(factor=1e300).seconds(10**9, 0.5) == 24 * 3600
    assert Exponential(2.0, factor=1).seconds(999, 0.5) == 2


@pytest.mark.accepts("G46")
def test_fixed_waits_the_same_each_time() -> None:
    assert waits(Fixed(2.0), 3) == [2, 2, 2]
    assert waits(Fixed(0), 2) == [0, 0]


@pytest.mark.accepts("G47")
@pytest.mark.parametrize("backoff", [Exponential(10.0, jitter=0.1), Fixed(10.0, jitter=0.1)])
def test_jitter_spreads_a_wait_evenly_around_its_middle(backoff: Exponential | Fixed) -> None:
    spread = [backoff.seconds(1, roll) for roll in (0.0, 0.25, 0.5, 0.75, 1.0)]
    assert spread == pytest.approx([9.0, 9.5, 10.0, 10.5, 11.0])


def test_full_jitter_never_waits_less_than_nothing() -> None:
    assert Fixed(10.0, jitter=1).seconds(1, 0.0) == 0


def test_a_retry_is_five_exponential_attempts_unless_told_otherwise() -> None:
    assert (Retry().attempts, Retry().backoff, Retry().never) == (5, Exponential(), ())


def test_a_number_is_a_fixed_wait_and_a_text_the_name_of_a_strategy() -> None:
    assert Retry(backoff=2).backoff == Fixed(2)
    assert Retry(backoff=0.5).backoff == Fixed(0.5)
    assert Retry(backoff="polite").backoff == "polite"


@pytest.mark.parametrize("attempts", [0, -1, 1001, True, 1.0, "3", None, 10**400])
def test_attempts_are_a_whole_number_from_1_to_1000(attempts: Any) -> None:
    with pytest.raises(InvalidOption, match="whole number from 1 to 1000"):
        Retry(attempts=attempts)


@pytest.mark.parametrize("attempts", [1, 1000])
def test_the_bounds_of_attempts_are_allowed(attempts: int) -> None:
    assert Retry(attempts=attempts).attempts == attempts


@pytest.mark.parametrize("backoff", [None, True, "", [1, 2], object])
def test_what_is_no_backoff_is_refused(backoff: Any) -> None:
    with pytest.raises(InvalidOption, match=r"Retry\(backoff=…\) must be"):
        Retry(backoff=backoff)


BAD_SPANS = [-1, math.nan, math.inf, -math.inf, True, "1", None, MAX_SECONDS + 1, 1e300, 10**400]


@pytest.mark.parametrize("seconds", BAD_SPANS, ids=lambda value: repr(value)[:12])
def test_a_backoff_waits_for_a_finite_span_of_at_most_ten_years(seconds: Any) -> None:
    with pytest.raises(InvalidOption, match="A backoff's wait"):
        Fixed(seconds)
    with pytest.raises(InvalidOption, match="A backoff's base"):
        Exponential(seconds)
    with pytest.raises(InvalidOption, match="A backoff's max"):
        Exponential(max=seconds)


def test_the_bounds_of_a_backoff() -> None:
    assert Fixed(MAX_SECONDS).wait == MAX_SECONDS
    for make in (lambda: Exponential(0), lambda: Exponential(max=0), lambda: Retry(backoff=10**400)):
        with pytest.raises(InvalidOption):
            make()


@pytest.mark.parametrize("jitter", [-0.1, 1.1, math.nan, math.inf, True, "0.1", None, 10**400])
def test_jitter_is_a_fraction(jitter: Any) -> None:
    for kind in (Exponential, Fixed):
        with pytest.raises(InvalidOption, match="jitter must be between 0 and 1"):
            kind(jitter=jitter)


@pytest.mark.parametrize("factor", [0.99, 0, -2, math.nan, math.inf, True, "2", None])
def test_an_exponential_never_shrinks(factor: Any) -> None:
    with pytest.raises(InvalidOption, match=r"factor=…\) must be at least 1"):
        Exponential(factor=factor)


def test_never_covers_subclasses_and_nothing_else() -> None:
    never = Retry(never=(ValueError,)).never
    assert never == ("builtins.ValueError",)
    assert is_never(never, ValueError("x"))  # type: ignore[arg-type]
    assert is_never(never, TooEarly("x"))  # type: ignore[arg-type]
    assert not is_never(never, TypeError("x"))  # type: ignore[arg-type]
    assert not is_never((), ValueError("x"))


def test_never_takes_its_own_stored_form_back() -> None:
    stored = Retry(never=(TooEarly, KeyboardInterrupt)).never
    assert Retry(never=stored).never == stored
    assert Retry(never=[TooEarly]).never == stored[:1]  # type: ignore[arg-type]


@pytest.mark.parametrize(
    "never",
    [
        ValueError,
        "ValueError",
        "builtins.ValueError",
        None,
        5,
        (5,),
        (int,),
        (None,),
        ("",),
        ("ValueError",),
        (ValueError("x"),),
    ],
    ids=repr,
)
def test_never_takes_exception_classes_only(never: Any) -> None:
    with pytest.raises(InvalidOption, match=r"Retry\(never=…\) takes"):
        Retry(never=never)
