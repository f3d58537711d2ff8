"""When schedules are due: cron patterns and intervals, where clocks are changed, and what is refused in which words.

The oracle is `wall_clock`, which looks at the clock every minute of the time in question.
"""

from __future__ import annotations

import datetime as dt
from bisect import bisect_right
from functools import cache
from typing import Any
from zoneinfo import ZoneInfo, available_timezones

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from wall_clock import MINUTE, at, due, looks

from onejob.core.errors import InvalidOption
from onejob.core.timing import MAX_PATTERN, Cron, Every

HOUR, DAY = 60 * MINUTE, 24 * 60 * MINUTE
PARIS, LORD_HOWE, SANTIAGO = "Europe/Paris", "Australia/Lord_Howe", "America/Santiago"


def between(timing: Cron | Every, start: int, end: int, anchor: int = 0) -> list[int]:
    """The slots from an instant to before another, as one who steps from slot to slot finds them."""
    found, slot = list[int](), start - 1
    while (slot := timing.after(slot, anchor)) < end:
        found.append(slot)
    return found


# Paris goes from 2:00 to 3:00 on 28 March 2027 (1:00 UTC), and from 3:00 to 2:00 on 31 October (1:00 UTC). Lord Howe
# goes from 2:00 to 2:30 on 3 October (15:30 UTC the day before), and from 2:00 to 1:30 on 4 April (15:00 UTC).
# Santiago goes from 0:00 to 1:00 on 5 September (4:00 UTC), and from 24:00 to 23:00 on 3 April (3:00 UTC on the 4th).
FIXED = {
    "Paris, left out": ("30 2 * * *", PARIS, ["03-27 01:30", "03-28 01:00", "03-29 00:30"]),
    "Paris, the first moment left out": ("0 2 * * *", PARIS, ["03-27 01:00", "03-28 01:00", "03-29 00:00"]),
    "Paris, the moment after": ("0 3 * * *", PARIS, ["03-27 02:00", "03-28 01:00", "03-29 01:00"]),
    "Paris, two that become one": ("0,30 2 28 3 *", PARIS, ["03-28 01:00"]),
    "Paris, left out and the moment after": ("0 2,3 28 3 *", PARIS, ["03-28 01:00"]),
    "Paris, twice": ("30 2 * * *", PARIS, ["10-30 00:30", "10-31 00:30", "11-01 01:30"]),
    "Paris, the first moment that comes twice": ("0 2 31 10 *", PARIS, ["10-31 00:00"]),
    "Paris, after what comes twice": ("0 3 31 10 *", PARIS, ["10-31 02:00"]),
    "Lord Howe, left out": ("15 2 * * *", LORD_HOWE, ["10-01 15:45", "10-02 15:30", "10-03 15:15"]),
    "Lord Howe, after the gap": ("45 2 3 10 *", LORD_HOWE, ["10-02 15:45"]),
    "Lord Howe, twice": ("45 1 * * *", LORD_HOWE, ["04-02 14:45", "04-03 14:45", "04-04 15:15"]),
    "Lord Howe, before what comes twice": ("15 1 4 4 *", LORD_HOWE, ["04-03 14:15"]),
    "Santiago, a midnight that is left out": (
        "0 0 * * *",
        SANTIAGO,
        ["09-04 04:00", "09-05 04:00", "09-06 03:00"],
    ),
    "Santiago, midnight of a day of the week": ("0 0 * * SUN", SANTIAGO, ["09-05 04:00", "09-12 03:00"]),
    "Santiago, midnight of a day of the month": ("59 0 5 9 *", SANTIAGO, ["09-05 04:00"]),
    "Santiago, twice before midnight": (
        "30 23 * * *",
        SANTIAGO,
        ["04-03 02:30", "04-04 02:30", "04-05 03:30"],
    ),
    "Santiago, the midnight after it": ("0 0 4 4 *", SANTIAGO, ["04-04 04:00"]),
}


@pytest.mark.parametrize("case", FIXED)
def test_a_fixed_time_counts_once_a_day_where_clocks_are_changed(case: str) -> None:
    pattern, tz, moments = FIXED[case]
    expected = [at(f"2027-{moment}") for moment in moments]
    assert between(Cron(pattern, tz), expected[0], expected[-1] + 1) == expected


RHYTHM = {
    "Paris, spring": (PARIS, "2027-03-28 01:00"),
    "Paris, autumn": (PARIS, "2027-10-31 01:00"),
    "Lord Howe, spring": (LORD_HOWE, "2027-10-02 15:30"),
    "Lord Howe, autumn": (LORD_HOWE, "2027-04-03 15:00"),
    "Santiago, spring": (SANTIAGO, "2027-09-05 04:00"),
    "Santiago, autumn": (SANTIAGO, "2027-04-04 03:00"),
}


@pytest.mark.parametrize("case", RHYTHM)
@pytest.mark.parametrize("pattern", ["*/5 * * * *", "* * * * *", "*/30 * * * *"])
def test_a_rhythm_is_kept_when_clocks_are_changed(case: str, pattern: str) -> None:
    tz, change = RHYTHM[case]
    step = {"*/5": 5, "*": 1, "*/30": 30}[pattern.split(maxsplit=1)[0]] * MINUTE
    start, end = at(change) - 6 * HOUR, at(change) + 6 * HOUR
    assert between(Cron(pattern, tz), start, end) == list(range(start, end, step))


def test_an_hourly_pattern_goes_by_what_clocks_show() -> None:
    skipped = between(Cron("0 * * * *", LORD_HOWE), at("2027-10-02 14:00"), at("2027-10-02 18:00"))
    assert skipped == [at(f"2027-10-02 {time}") for time in ("14:30", "16:00", "17:00")], "2:00 was not shown"
    again = between(Cron("0 * * * *", PARIS), at("2027-10-31 00:00"), at("2027-10-31 03:00"))
    assert again == [at(f"2027-10-31 {time}") for time in ("00:00", "01:00", "02:00")], "2:00 was shown twice"


@pytest.mark.accepts("G1")
def test_a_cron_pattern_is_read_in_utc_unless_it_says_otherwise() -> None:
    morning = Cron("0 8 * * *")
    assert morning.tz == "UTC"
    assert morning.after(at("2027-03-28 07:59")) == at("2027-03-28 08:00")
    assert morning.after(at("2027-03-28 08:00")) == at("2027-03-29 08:00"), "after, not at"
    assert Cron("0 8 * * *", PARIS).after(at("2027-03-27 08:00")) == at("2027-03-28 06:00")


@pytest.mark.parametrize(
    ("pattern", "moments"),
    [
        ("0 0 29 2 *", ["2028-02-29 00:00", "2032-02-29 00:00"]),
        ("0 12 L * *", ["2027-01-31 12:00", "2027-02-28 12:00", "2027-03-31 12:00"]),
        ("0 0 * * MON#1", ["2027-01-04 00:00", "2027-02-01 00:00"]),
        ("0 0 13 * FRI", ["2027-01-01 00:00", "2027-01-08 00:00", "2027-01-13 00:00", "2027-01-15 00:00"]),
        ("0 0 1 JAN *", ["2027-01-01 00:00", "2028-01-01 00:00"]),
        ("30 6 1-7 * */7", ["2027-01-03 06:30", "2027-02-07 06:30"]),
        ("0 0 1 1 7", ["2027-01-01 00:00", "2027-01-03 00:00", "2027-01-10 00:00"]),
    ],
)
def test_days_are_read_as_people_write_them(pattern: str, moments: list[str]) -> None:
    expected = [at(moment) for moment in moments]
    assert between(Cron(pattern), at("2027-01-01 00:00"), expected[-1] + 1) == expected


def test_a_rare_slot_is_found_from_far_away_in_both_directions() -> None:
    leap = Cron("0 0 29 2 SUN")
    assert leap.after(at("2027-02-28 00:00")) == at("2028-02-06 00:00"), "either day counts"
    sundays = Cron("0 0 29 2 */7")
    first = sundays.after(at("2027-01-01 00:00"))
    assert first == at("2032-02-29 00:00")
    assert sundays.after(first) == at("2060-02-29 00:00")
    assert sundays.latest(at("2060-02-28 23:59"), first) == first
    assert sundays.latest(at("2060-03-01 00:00"), first) == at("2060-02-29 00:00")


ZONES = sorted(
    {PARIS, LORD_HOWE, SANTIAGO, "UTC", "America/Havana", "Africa/Casablanca", "Antarctica/Troll"}
    | {
        "Asia/Beirut",
        "Asia/Kathmandu",
        "America/St_Johns",
        "Pacific/Apia",
        "Pacific/Chatham",
        "Europe/Dublin",
    }
)
EVERYWHERE = sorted(zone for zone in available_timezones() if "/" in zone and not zone.startswith("Etc/"))


@cache
def changes(tz: str, year: int) -> list[int]:
    """The days of a year, as instants, before the end of which the clocks are changed."""
    zone, start = ZoneInfo(tz), dt.datetime(year, 1, 1, tzinfo=dt.UTC)
    days = [start + dt.timedelta(days=number) for number in range(366)]
    offsets = [day.astimezone(zone).utcoffset() for day in days]
    moved = [day for day, before, after in zip(days, offsets, offsets[1:], strict=False) if before != after]
    return [int(day.timestamp() * 1000) for day in moved] or [int(start.timestamp() * 1000)]


def lists(low: int, high: int) -> st.SearchStrategy[str]:
    numbers = st.lists(st.integers(low, high), min_size=1, max_size=3, unique=True)
    return numbers.map(lambda found: ",".join(map(str, found)))


def ranges(low: int, high: int) -> st.SearchStrategy[str]:
    """A range of one with a step is left out: some take it for one without an end."""
    pairs = st.lists(st.integers(low, high), min_size=2, max_size=2, unique=True).map(sorted)
    return st.builds(
        lambda pair, step: f"{pair[0]}-{pair[1]}" + (f"/{step}" if step else ""),
        pairs,
        st.sampled_from((0, 2, 5)),
    )


STARS = st.sampled_from(("*", "*", "*/2", "*/5", "*/7", "*/13"))
PATTERNS = st.tuples(
    st.one_of(lists(0, 59), STARS, ranges(0, 59), st.sampled_from(("0", "30", "59"))),
    st.one_of(lists(0, 3), lists(22, 23), STARS, ranges(0, 23)),
    st.one_of(st.just("*"), st.just("*"), STARS, lists(1, 28), ranges(1, 31)),
    st.one_of(st.just("*"), st.just("*"), ranges(1, 12)),
    st.one_of(st.just("*"), st.just("*"), STARS, lists(0, 7), ranges(0, 6)),
).map(" ".join)


@given(data=st.data(), pattern=PATTERNS, tz=st.one_of(st.sampled_from(ZONES), st.sampled_from(EVERYWHERE)))
def test_slots_are_what_one_sees_who_looks_at_the_clock_every_minute(
    data: st.DataObject, pattern: str, tz: str
) -> None:
    change = data.draw(st.sampled_from(changes(tz, data.draw(st.integers(1995, 2037)))))
    start = change - DAY + data.draw(st.integers(0, DAY))
    end = start + 3 * DAY
    expected = [slot for slot in due(pattern, looks(tz, start, end)) if slot >= start]
    timing = Cron(pattern, tz)
    assert between(timing, start, end) == expected
    if expected:
        place = data.draw(st.integers(0, len(expected) - 1))
        instant = data.draw(st.sampled_from((0, 1, MINUTE, HOUR, 30 * HOUR))) + expected[place]
        assert timing.latest(min(instant, end - 1), expected[0]) == max(
            slot for slot in expected if slot <= instant
        )


@pytest.mark.parametrize("pattern", ["*/5 * * * *", "0 * * * *", "0 0 * * *", "30 23 * * *", "59 23,0 * * *"])
@pytest.mark.parametrize(
    ("tz", "change"),
    [
        ("America/St_Johns", "2010-11-07 02:31"),  # back from 0:01 to 23:01 of the day before
        ("America/St_Johns", "2010-03-14 03:31"),
        (SANTIAGO, "2027-04-04 03:00"),
        (SANTIAGO, "2027-09-05 04:00"),
        ("Pacific/Apia", "2011-12-30 10:00"),  # a whole day is left out
    ],
)
def test_days_that_begin_twice_or_never_have_their_slots(tz: str, change: str, pattern: str) -> None:
    start, end = at(change) - 30 * HOUR, at(change) + 30 * HOUR
    expected, timing = due(pattern, looks(tz, start, end)), Cron(pattern, tz)
    assert between(timing, start, end) == expected
    for instant in range(at(change) - 3 * HOUR, at(change) + 3 * HOUR, MINUTE):
        place = bisect_right(expected, instant)
        assert timing.latest(instant, expected[0]) == expected[place - 1]
        assert timing.after(instant) == expected[place]


@given(
    pattern=PATTERNS,
    tz=st.sampled_from(ZONES),
    start=st.integers(at("1995-01-01 00:00"), at("2037-01-01 00:00")),
    days=st.integers(0, 40 * DAY),
)
def test_the_latest_slot_is_where_stepping_leads(pattern: str, tz: str, start: int, days: int) -> None:
    timing, instant = Cron(pattern, tz), start + days
    first = slot = timing.after(start)
    if first > instant:
        assert timing.latest(instant, first) == first
        return
    while (later := timing.after(slot)) <= instant:
        assert later > slot
        slot = later
    assert timing.latest(instant, first) == slot


@given(
    seconds=st.one_of(st.integers(1, 100_000), st.floats(0.1, 1_000)),
    anchor=st.integers(0, 4 * 10**12),
    passed=st.integers(-(10**9), 10**9),
)
def test_an_interval_is_counted_from_its_anchor(seconds: float, anchor: int, passed: int) -> None:
    every, instant = Every(seconds), anchor + passed
    slot = every.after(instant, anchor)
    assert slot > instant
    assert (slot - anchor) % every.period == 0
    assert slot - instant <= every.period or slot == anchor + every.period, (
        "the next, but none before the first"
    )
    assert slot >= anchor + every.period
    assert every.after(slot, anchor) == slot + every.period
    first, later = slot, slot + passed % (20 * every.period)
    expected = max(first + n * every.period for n in range(21) if first + n * every.period <= later)
    assert every.latest(later, first, anchor) == expected


@pytest.mark.accepts("G2")
def test_an_interval_is_the_same_however_it_is_written() -> None:
    assert Every(300) == Every(300.0) == Every(dt.timedelta(minutes=5))
    assert Every(0.25).period == 250
    assert Every(1.0004).period == 1000, "whole milliseconds"
    assert str(Every(300)) == "every 300 s"


def test_timings_survive_being_stored() -> None:
    for timing in (
        Cron("0 8 * * MON-FRI", PARIS),
        Cron("* * * * *"),
        Every(0.1),
        Every(dt.timedelta(days=1)),
    ):
        data = msgspec.json.encode(timing)
        assert msgspec.json.decode(data, type=Cron | Every) == timing


def test_a_pattern_is_the_same_however_it_is_spaced_and_cased() -> None:
    assert Cron("  0 8\t*  jan mon ") == Cron("0 8 * JAN MON")
    assert str(Cron("0 8 * * *", PARIS)) == "0 8 * * * Europe/Paris"


def test_a_zone_that_this_machine_does_not_know_cannot_be_read_back() -> None:
    stored = msgspec.json.encode(Cron("0 8 * * *", PARIS)).replace(b"Paris", b"Parys")
    with pytest.raises(msgspec.ValidationError, match="Europe/Parys"):
        msgspec.json.decode(stored, type=Cron | Every)


FIELDS = "minute 0-59, hour 0-23, day of month 1-31 or L, month 1-12 or JAN-DEC, day of week 0-7 or SUN-SAT"
BAD_PATTERNS = {
    "": f"five fields ({FIELDS}), and '' has 0",
    "* * * *": "has 4; for seconds, use Every(…)",
    "* * * * * *": "has 6; for seconds, use Every(…)",
    "60 * * * *": "'60 * * * *' has a wrong minute: its fields are " + FIELDS,
    "-1 * * * *": "wrong minute",
    "*/0 * * * *": "wrong minute",
    "5-1 * * * *": "wrong minute",
    "1,,2 * * * *": "wrong minute",
    "1.5 * * * *": "wrong minute",
    "a * * * *": "wrong minute",
    "*/ * * * *": "wrong minute",
    "0 24 * * *": "wrong hour",
    "0 8pm * * *": "wrong hour",
    "0 0 0 * *": "wrong day of month",
    "0 0 32 * *": "wrong day of month",
    "0 0 32 2 *": "wrong day of month",
    "0 0 ? * *": "wrong day of month",
    "0 0 * 0 *": "wrong month",
    "0 0 * 13 *": "wrong month",
    "0 0 * FOO *": "wrong month",
    "0 0 * * 8": "wrong day of week",
    "0 0 * * MUN": "wrong day of week",
    "0 0 * * MON#6": "wrong day of week",
    "0 0 31 2 *": "'0 0 31 2 *' never fires: no month has such a day",
    "0 0 30 2 *": "never fires",
    "0 0 31 2,4,6,9,11 *": "never fires",
    "0 0 */31 2 MON#5": "never fires",
    "@daily": 'Cron("@daily") is not known here: write Cron("0 0 * * *")',
    "@Hourly": 'write Cron("0 * * * *")',
    "@reboot": "has 1",
    "* * * * \N{DEVANAGARI DIGIT ONE}": "at most 100 ASCII characters",
    "* * * * \N{NO-BREAK SPACE}*": "at most 100 ASCII characters",
    "* * * * " + ",".join(["1"] * 50): f"at most {MAX_PATTERN} ASCII characters",
    "0 8 * * *\0": "wrong day of week",
}


@pytest.mark.parametrize("pattern", BAD_PATTERNS)
def test_a_pattern_that_breaks_a_rule_is_refused_with_that_rule(pattern: str) -> None:
    with pytest.raises(InvalidOption) as caught:
        Cron(pattern)
    assert BAD_PATTERNS[pattern] in str(caught.value)
    assert len(str(caught.value)) < 400


@pytest.mark.parametrize("pattern", [None, 5, b"0 8 * * *", ["0", "8", "*", "*", "*"], True])
def test_a_pattern_is_a_text(pattern: Any) -> None:
    with pytest.raises(InvalidOption, match='is a text of five fields such as "0 8'):
        Cron(pattern)


@given(st.text(alphabet="0123456789*/,-#LWMONJA? ", max_size=40))
def test_whatever_is_written_either_works_or_is_refused(text: str) -> None:
    try:
        timing = Cron(text)
    except InvalidOption:
        return
    assert timing.after(at("2027-01-01 00:00")) > at("2027-01-01 00:00")


def test_the_longest_pattern_is_taken() -> None:
    numbers = ",".join(map(str, range(10, 40)))
    pattern = f"{numbers},5 * * * *"
    pattern += ",0" * ((MAX_PATTERN - len(pattern)) // 2)
    assert MAX_PATTERN - len(pattern) <= 1
    assert Cron(pattern).pattern == pattern


@pytest.mark.parametrize(
    ("tz", "says"),
    [
        ("Europe/Pariss", "There is no time zone 'Europe/Pariss': did you mean 'Europe/Paris'?"),
        ("paris", "There is no time zone 'paris'"),
        ("", 'name a place, such as "Europe/Berlin", or "UTC".'),
        ("+02:00", "There is no time zone"),
        ("../../etc/passwd", "There is no time zone"),
        ("/etc/localtime", "There is no time zone"),
        ("Europe", "There is no time zone"),
        ("Europe/Paris\0", "There is no time zone"),
        ("localtime", "There is no time zone"),
        ("posix/Europe/Paris", "There is no time zone"),
        ("right/Europe/Paris", "There is no time zone"),
        ("Europe/Paris ", "There is no time zone"),
        ("x" * 5_000, "There is no time zone"),
        ("\ud800", "There is no time zone"),
        (None, "must be the name of a time zone"),
        (2, "must be the name of a time zone"),
        (ZoneInfo("Europe/Paris"), "must be the name of a time zone"),
    ],
)
def test_a_zone_that_does_not_exist_is_refused(tz: Any, says: str) -> None:
    with pytest.raises(InvalidOption) as caught:
        Cron("0 8 * * *", tz=tz)
    assert says in str(caught.value)
    assert len(str(caught.value)) < 300


def test_every_zone_that_exists_is_taken() -> None:
    for zone in EVERYWHERE:
        assert Cron("0 8 * * *", tz=zone).tz == zone


@pytest.mark.parametrize(
    ("seconds", "says"),
    [
        (0, "Every(…) must be at least 0.1 seconds, not 0"),
        (-1, "must be at least 0.1 seconds"),
        (0.099, "must be at least 0.1 seconds"),
        (dt.timedelta(0), "must be at least 0.1 seconds"),
        (float("nan"), "must be finite"),
        (float("inf"), "must be finite"),
        (11 * 366 * 86_400, "must be at most ten years"),
        (10**400, "must be at most ten years"),
        ("5", "must be seconds (a number) or a timedelta, not '5'"),
        (None, "must be seconds"),
        (True, "must be seconds"),
        ([5], "must be seconds"),
    ],
)
def test_an_interval_that_breaks_a_rule_is_refused_with_that_rule(seconds: Any, says: str) -> None:
    with pytest.raises(InvalidOption) as caught:
        Every(seconds)
    assert says in str(caught.value)
