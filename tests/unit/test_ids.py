"""Ids are UUIDv7, unique, and in order of making, whatever the clock does."""

from __future__ import annotations

import os
import threading
import uuid

import pytest

from onejob import ids
from onejob.ids import IdMaker, new_id, new_ids


def test_an_id_is_a_uuid_of_version_7_that_tells_the_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ids.time, "time_ns", lambda: 1_800_000_000_123 * 1_000_000)
    made = uuid.UUID(IdMaker().one())
    assert (made.version, made.variant) == (7, uuid.RFC_4122)
    assert made.int >> 80 == 1_800_000_000_123


def test_ids_come_in_order_one_by_one_and_in_bulk() -> None:
    made = [*(new_id() for _ in range(5_000)), *new_ids(5_000), new_id()]
    assert made == sorted(made)
    assert len(set(made)) == len(made)


def test_a_clock_set_back_does_not_disturb_the_order(monkeypatch: pytest.MonkeyPatch) -> None:
    maker = IdMaker()
    times = iter([2_000, 1_000, 1_500, 2_001])
    monkeypatch.setattr(ids.time, "time_ns", lambda: next(times) * 1_000_000)
    made = [maker.one() for _ in range(4)]
    assert made == sorted(set(made))


def test_threads_never_share_an_id() -> None:
    made: list[str] = []
    start = threading.Barrier(8)

    def make() -> None:
        start.wait()
        made.extend([new_id() for _ in range(2_000)])

    threads = [threading.Thread(target=make) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(set(made)) == 16_000


def test_a_signal_handler_makes_one_while_its_thread_begins_a_millisecond(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    maker = IdMaker()
    real, within = os.urandom, list[str]()

    def interrupted(size: int) -> bytes:
        monkeypatch.setattr(ids.os, "urandom", real)
        within.append(maker.one())
        return real(size)

    monkeypatch.setattr(ids.os, "urandom", interrupted)
    monkeypatch.setattr(ids.time, "time_ns", lambda: 4_000_000_000_000 * 1_000_000)
    made = [maker.one(), maker.one()]
    assert [*within, *made] == sorted({*within, *made})


@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
def test_a_forked_child_makes_other_ids_even_in_the_same_millisecond(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ids.time, "time_ns", lambda: 4_000_000_000_000 * 1_000_000)
    new_id()
    reader, writer = os.pipe()
    child = os.fork()
    if child == 0:
        os.write(writer, new_id().encode())
        os._exit(0)
    os.waitpid(child, 0)
    assert os.read(reader, 100).decode() != new_id()
    ids._maker.reset()  # its clock stood in the far future
