"""What a process remembers of rows: bounded in number and in age, and never for longer than it helps."""

from __future__ import annotations

from onejob.intake.memory import HandedOver, Told


def test_a_row_is_known_for_a_minute_at_its_due_time() -> None:
    known = HandedOver()
    known.add("sms", 1, 500, now=1_000)
    assert known.knows("sms", 1, 500, now=60_999)
    assert not known.knows("sms", 1, 600, now=1_000), "its time was changed"
    assert not known.knows("other", 1, 500, now=1_000)
    assert not known.knows("sms", 1, 500, now=61_000)
    assert len(known) == 0, "what is too old goes"


def test_a_clock_that_was_set_back_forgets() -> None:
    known = HandedOver()
    known.add("sms", 1, 500, now=1_000)
    assert not known.knows("sms", 1, 500, now=999)


def test_of_too_many_rows_the_first_are_forgotten() -> None:
    known = HandedOver(most=3)
    for id in range(5):
        known.add("sms", id, 0, now=0)
    known.add("sms", 2, 0, now=1)
    known.add("sms", 5, 0, now=1)
    assert len(known) == 3
    assert [id for id in range(6) if known.knows("sms", id, 0, now=1)] == [2, 4, 5]


def test_rows_that_are_too_old_make_room_when_others_come() -> None:
    known = HandedOver()
    for id in range(5):
        known.add("sms", id, 0, now=id)
    known.add("sms", 5, 0, now=60_002)
    assert [id for id in range(6) if known.knows("sms", id, 0, now=60_002)] == [3, 4, 5]
    assert len(known) == 3


def test_an_allowed_row_is_looked_at_again() -> None:
    known = HandedOver()
    known.add("sms", [1], 0, now=0)
    known.forget("sms", [1], 0)
    known.forget("sms", 7, 0)
    assert not known.knows("sms", [1], 0, now=0)


def test_a_reason_is_told_once_until_it_changes() -> None:
    told = Told()
    assert told.is_news("sms", 1, "no phone")
    assert not told.is_news("sms", 1, "no phone")
    assert told.is_news("sms", 2, "no phone")
    assert told.is_news("sms", 1, "no text")
    told.forget("sms", 1)
    assert told.is_news("sms", 1, "no text")


def test_of_too_many_reasons_only_their_number_is_told() -> None:
    told = Told(most=2)
    assert [told.is_news("sms", id, "no phone") for id in range(4)] == [True, True, False, False]
    assert told.is_more(4)
    assert not told.is_more(4), "told already"
    assert told.is_more(5)
    assert not told.is_more(2), "all of them were named"
    assert not told.is_more(0)
    assert told.is_news("sms", 3, "no phone"), "when all is well, there is room again"


def test_rows_that_are_gone_make_room_for_others() -> None:
    told = Told(most=2)
    assert [told.is_news("sms", id, "no phone") for id in range(2)] == [True, True]
    assert not told.is_more(2)
    assert not told.is_news("sms", 0, "no phone")
    assert not told.is_news("sms", 7, "no phone"), "there is no room in this run yet"
    assert not told.is_more(2)
    assert not told.is_news("sms", 0, "no phone")
    assert told.is_news("sms", 7, "no phone"), "row 1 was not met any more"
    assert len(told) == 2
