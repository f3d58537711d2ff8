"""Every operation, cut off before each of its statements: nothing is half done, and the rest goes on.

Two cuts. *Died*: the disk as it was before each statement, and after the last (the reply is lost), is opened
by another process. *Failed*: each statement in turn fails with a full disk, in the same process. Either way
the store stands exactly as before the operation or exactly as after it, the operation can be repeated, and
everything drains.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from copy import deepcopy
from pathlib import Path
from typing import Any
from uuid import UUID

import apsw
import pytest
from cutting import Watched, copy_store
from pair import ALL, Pair
from policies import BACKOFF, DEAD, DELAY, EXPIRES, LEASE, PER, QUEUES, WAIT, WINDOW, digest

from onejob.core.errors import StoreFull
from onejob.core.lane import QueueChange, Rate
from onejob.core.lifecycle import Move
from onejob.store import Amendment, JobStore
from onejob.testing.clock import FakeClock
from onejob.testing.model import Model
from onejob.testing.records import Call, LaneLimits, Pace
from onejob.testing.verdicts import Policy

KEY = digest("q", "t", "a")
Step = Callable[[Pair], Any]
MakePair = Callable[[str], Pair]


def call(number: int, preset: str | None = None, **changes: Any) -> Call:
    """A call of the hot key, or of none."""
    made: dict[str, Any] = {"id": str(UUID(int=number)), "payload": b'{"v":%d}' % number}
    if preset is not None:
        policy = {name: changes.pop(name) for name in ("within", "wait", "max_items") if name in changes}
        made |= {"key": KEY, "policy": Policy(preset=preset, **policy)}
    return Call(**{**made, **changes})


def put(*calls: Call) -> Step:
    return lambda pair: pair.enqueue(list(calls))


def beat(pair: Pair) -> None:
    pair.beat("w1")


def claim(pair: Pair) -> None:
    pair.claim("w1", QUEUES, ALL)


def start(pair: Pair) -> None:
    beat(pair)
    claim(pair)


def end(move: Move, *, delay: int = 0, ask: bool = False) -> Step:
    return lambda pair: pair.settle([(0, move, delay)], ask=("w1", QUEUES, ALL) if ask else None)


def amend(number: int, amendment: Amendment) -> Step:
    return lambda pair: pair.amend(str(UUID(int=number)), amendment)


def advance(span: int) -> Step:
    return lambda pair: pair.clock.tick(span)


def limit(change: QueueChange) -> Step:
    return lambda pair: pair.set_queue("q", change)


LANE, HELD = LaneLimits("x"), LaneLimits("x", hold=True)
WIDE, PACED = LaneLimits("x", 2), LaneLimits("x", 2, Pace(1, PER))
LATEST, SECOND = call(1, "latest"), call(2, "latest")
RUNNING = [put(LATEST), start]
FOLLOWED = [*RUNNING, put(SECOND)]
IN_LANE = [put(call(1, lane=LANE), call(2, lane=LANE)), start]
KEPT = [put(call(1, lane=HELD), call(2, lane=HELD)), start, end(Move.RETRY, delay=BACKOFF)]
BURIED = [put(call(1, dead_letter=DEAD)), start, end(Move.FAIL)]

OPERATIONS: dict[str, tuple[list[Step], Step]] = {
    "enqueue: a batch": ([], put(LATEST, call(3), call(4, "once", queue="r"), SECOND)),
    "enqueue: an update": ([put(LATEST)], put(SECOND)),
    "enqueue: a postponement": ([put(call(1, "debounce", wait=WAIT))], put(call(2, "debounce", wait=WAIT))),
    "enqueue: a collected item": (
        [put(call(1, "collect", wait=WAIT, max_items=2, items=1))],
        put(call(2, "collect", wait=WAIT, max_items=2, items=1)),
    ),
    "enqueue: an overflowing item": (
        [put(call(1, "collect", wait=WAIT, max_items=2, items=2, delay=DELAY))],
        put(call(2, "collect", wait=WAIT, max_items=2, items=2)),
    ),
    "enqueue: a cancelled queued holder": ([put(LATEST)], put(call(2, "restart"))),
    "enqueue: a cancelled running holder": (RUNNING, put(call(2, "restart"))),
    "enqueue: a cancelled follower": (FOLLOWED, put(call(3, "restart"))),
    "enqueue: a follower": (RUNNING, put(SECOND)),
    "enqueue: a trailing call": (
        [put(call(1, "trailing", within=WINDOW)), start],
        put(call(2, "trailing", within=WINDOW)),
    ),
    "claim: waiting, delayed and expired jobs": (
        [put(LATEST, call(2, delay=DELAY), call(3, expires=EXPIRES)), advance(EXPIRES), beat],
        claim,
    ),
    "beat": ([*RUNNING, advance(LEASE)], beat),
    "settle: a completion with a follower": (FOLLOWED, end(Move.COMPLETE, ask=True)),
    "settle: a failure with a follower": (FOLLOWED, end(Move.FAIL)),
    "settle: a remembered completion": ([put(call(1, "once")), start], end(Move.COMPLETE)),
    "settle: a retry": (FOLLOWED, end(Move.RETRY, delay=BACKOFF)),
    "settle: a hand-back and the next claim": (RUNNING, end(Move.HAND_BACK, ask=True)),
    "settle: a rescue": ([*FOLLOWED, advance(LEASE)], end(Move.LOSE)),
    "settle: a flagged job": ([*FOLLOWED, amend(1, Amendment.REVOKE)], end(Move.COMPLETE)),
    "amend: a revoked follower": (FOLLOWED, amend(2, Amendment.REVOKE)),
    "amend: a flagged job": (RUNNING, amend(1, Amendment.REVOKE)),
    "amend: a revived job": ([*RUNNING, end(Move.FAIL)], amend(1, Amendment.RETRY)),
    "amend: a deleted holder": ([put(call(1, "throttle", within=WINDOW))], amend(1, Amendment.DELETE)),
    "release": ([put(call(1, "once"))], lambda pair: pair.release(KEY)),
    "prune": (
        [
            put(call(1, "throttle", within=WINDOW), call(2, expires=EXPIRES), call(3)),
            start,
            end(Move.COMPLETE),
        ],
        lambda pair: pair.prune(0),
    ),
    "enqueue: other limits for a lane": (IN_LANE, put(call(3, lane=PACED))),
    "enqueue: a cancelled head of a lane": (
        [put(call(1, "restart", lane=LANE), call(2, lane=LANE))],
        put(call(3, "restart", lane=LANE)),
    ),
    "enqueue: a postponed head of a lane": (
        [put(call(1, "latest", lane=LANE), call(2, lane=LANE))],
        put(call(3, "debounce", wait=WAIT, lane=LANE)),
    ),
    "claim: lanes, one of them with a rate": (
        [put(call(1, lane=LANE), call(2, lane=LANE), call(3, lane=LaneLimits("y", 2, Pace(1, PER)))), beat],
        claim,
    ),
    "claim: a lane whose window opens": (
        [put(call(1, lane=PACED), call(2, lane=PACED)), start, advance(PER), beat],
        claim,
    ),
    "claim: within the limits of a queue": (
        [limit(QueueChange(concurrency=2, rate=Rate(1, per=60))), put(call(1), call(2)), beat],
        claim,
    ),
    "settle: a slot for the next claim": (IN_LANE, end(Move.COMPLETE, ask=True)),
    "settle: a slot of several": (
        [put(*(call(number, lane=WIDE, priority=number) for number in range(1, 5))), start],
        end(Move.COMPLETE, ask=True),
    ),
    "settle: a rescue in a lane": ([*IN_LANE, advance(LEASE)], end(Move.LOSE)),
    "settle: a slot that is kept": (
        [put(call(1, lane=HELD), call(2, lane=HELD)), start],
        end(Move.RETRY, delay=BACKOFF),
    ),
    "settle: a dead letter": ([put(call(1, dead_letter=DEAD)), start], end(Move.FAIL)),
    "amend: a kept slot that gets free": (KEPT, amend(1, Amendment.REVOKE)),
    "amend: a job revived into its lane": (
        [*IN_LANE, end(Move.FAIL), claim],
        amend(1, Amendment.RETRY),
    ),
    "amend: a retried dead letter": (BURIED, amend(1, Amendment.RETRY)),
    "amend: an original that is made again": (
        [*BURIED, amend(1, Amendment.DELETE)],
        amend(1, Amendment.RETRY),
    ),
    "set_queue": ([limit(QueueChange(paused=True))], limit(QueueChange(paused=False, concurrency=3))),
    "leave": (RUNNING, lambda pair: pair.leave("w1")),
}


@pytest.fixture
def loop() -> Iterator[asyncio.AbstractEventLoop]:
    loop = asyncio.new_event_loop()
    yield loop
    Watched.before_statement = None
    loop.close()


@pytest.fixture
def make_pair(tmp_path: Path, loop: asyncio.AbstractEventLoop) -> Iterator[MakePair]:
    yield from pairs(Pair, tmp_path, loop)


def pairs(kind: type[Pair], folder: Path, loop: asyncio.AbstractEventLoop) -> Iterator[MakePair]:
    """What makes pairs whose stores are in folders of that one, until it is closed."""
    made: list[Pair] = []

    def make(name: str) -> Pair:
        def opened(clock: FakeClock) -> JobStore:
            return Watched(str(folder / name / "jobs.db"), clock=clock)

        made.append(kind(opened, loop))
        return made[-1]

    yield make
    for pair in made:
        pair.close()


@pytest.mark.parametrize("name", OPERATIONS)
def test_a_process_that_dies_leaves_all_or_nothing(name: str, tmp_path: Path, make_pair: MakePair) -> None:
    die_anywhere(*OPERATIONS[name], tmp_path, make_pair)


@pytest.mark.parametrize("name", OPERATIONS)
def test_a_statement_that_fails_leaves_nothing_and_can_be_repeated(name: str, make_pair: MakePair) -> None:
    fail_anywhere(*OPERATIONS[name], make_pair)


def die_anywhere(prepare: list[Step], operate: Step, tmp_path: Path, make_pair: MakePair) -> None:
    """Open what is on disk before each statement of an operation, and after the last."""
    pair = make_pair("origin")
    for step in prepare:
        step(pair)
    before = deepcopy(pair.model)
    statements: list[str] = []

    def take_image(statement: str) -> None:
        copy_store(tmp_path / "origin", tmp_path / f"image{len(statements)}")
        statements.append(statement)

    Watched.before_statement = take_image
    operate(pair)
    Watched.before_statement = None
    copy_store(tmp_path / "origin", tmp_path / f"image{len(statements)}")
    after = deepcopy(pair.model)
    done: list[bool] = []
    for number in range(len(statements) + 1):
        image = make_pair(f"image{number}")
        image.inherit(pair)
        done.append(shows_it_done(image, before, after))
        operate(image)
        image.drain()
    assert done == sorted(done), "what is committed stays so"
    assert (done[0], done[-1]) == (False, True)


def fail_anywhere(
    prepare: list[Step], operate: Step, make_pair: MakePair, full: type[Exception] = apsw.FullError
) -> None:
    """Let each statement of an operation fail in turn; `full` is what the database raises when its disk is full."""
    pair = make_pair("origin")
    for step in prepare:
        step(pair)
    failing, fired = 0, True
    while fired:
        failing += 1
        seen, fired = 0, False

        def fail(_: str, at: int = failing) -> None:
            nonlocal seen, fired
            seen += 1
            if seen == at:
                fired = True
                raise full("injected: disk full")

        Watched.before_statement = fail
        try:
            operate(pair)
        except StoreFull:
            assert fired
        Watched.before_statement = None
        pair.check()
    assert failing > 2, "an operation begins and commits"
    pair.drain()


def shows_it_done(image: Pair, before: Model, after: Model) -> bool:
    """Which of the two an image of the disk shows; anything else is a failure."""
    for model, done in ((after, True), (before, False)):
        image.model = deepcopy(model)
        try:
            image.check()
            image.check_leases()
        except AssertionError:
            if not done:
                raise
        else:
            return done
    raise AssertionError
