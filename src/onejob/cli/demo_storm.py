"""The storm of `onejob demo`: five kinds of events that people know, most of them duplicates, and their tally."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any

from onejob.cli.demo_app import handle_webhook, maintain, save_document, search, send_welcome
from onejob.core.job import JobId
from onejob.core.judge import Outcome
from onejob.plans import Call
from onejob.receipt import Receipt

USERS, DOCUMENTS, VERSIONS, WEBHOOKS, DELIVERIES, SESSIONS, NIGHTS = 40, 20, 8, 30, 5, 10, 100
PARTS = 60
TEXT = "duplicates"
NIGHT = "tonight"


@dataclass(frozen=True, slots=True)
class Kind:
    """One kind of events; its jobs have a queue of their own, so that they can be counted."""

    queue: str
    title: str
    policy: str
    why: str


KINDS = (
    Kind("clicks", "double clicks", 'Unique.once(by="user")', "once per user"),
    Kind("edits", "rapid edits", 'Unique.latest(by="document")', "the newest wins"),
    Kind("webhooks", "retried webhooks", 'Unique.once(by="event")', "once per event"),
    Kind("searches", "search as you type", 'Unique.debounce(0.6, by="session")', "after a pause"),
    Kind("maintenance", "nightly maintenance", 'Unique.in_flight(by="night")', "one at a time"),
)


@dataclass(slots=True)
class Tally:
    """What was asked, and what became of it."""

    asked: Counter[str] = field(default_factory=Counter[str])
    absorbed: Counter[tuple[str, Outcome]] = field(default_factory=Counter[tuple[str, Outcome]])
    created: set[JobId] = field(default_factory=set[JobId])
    named: set[JobId] = field(default_factory=set[JobId])

    def add(self, receipts: Iterable[Receipt[Any]]) -> None:
        """Count what these receipts say."""
        for receipt in receipts:
            self.asked[receipt.queue] += 1
            self.named.add(receipt.id)
            if receipt.deduplicated:
                self.absorbed[receipt.queue, receipt.outcome] += 1
            else:
                self.created.add(receipt.id)

    def absorbed_by(self, queue: str) -> int:
        """How many calls of a queue made no job."""
        return sum(number for (of, _), number in self.absorbed.items() if of == queue)

    def why(self, kind: Kind) -> str:
        """How they were absorbed, and by which rule."""
        parts = [f"{number} {outcome}" for (of, outcome), number in self.absorbed.items() if of == kind.queue]
        return f"{', '.join(parts)}: {kind.why}" if parts else ""


def storm(seconds: float, work: float) -> list[tuple[float, Call[Any]]]:
    """All calls with the moment of each, in order; `work` is how long the maintenance takes."""
    dice = random.Random(7)
    calls = [
        *_clicks(seconds, dice),
        *_edits(seconds, dice),
        *_webhooks(seconds, dice),
        *_searches(seconds, dice),
        *_nights(seconds * 0.75, work),
    ]
    return sorted(calls, key=lambda pair: pair[0])


def _clicks(seconds: float, dice: random.Random) -> Iterator[tuple[float, Call[Any]]]:
    for number in range(USERS):
        first = dice.uniform(0, seconds)
        for click in range(dice.choice((2, 2, 3))):
            yield first + click * 0.15, send_welcome.job(f"user-{number}")


def _edits(seconds: float, dice: random.Random) -> Iterator[tuple[float, Call[Any]]]:
    for number in range(DOCUMENTS):
        moment = dice.uniform(0, seconds * 0.7)
        for version in range(1, VERSIONS + 1):
            yield moment, save_document.job(f"document-{number}", version)
            moment += dice.uniform(0.04, 0.16)


def _webhooks(seconds: float, dice: random.Random) -> Iterator[tuple[float, Call[Any]]]:
    for number in range(WEBHOOKS):
        moment = dice.uniform(0, seconds * 0.5)
        for delivery in range(1, DELIVERIES + 1):
            yield moment, handle_webhook.job(f"event-{number}", delivery)
            moment += dice.uniform(0.1, seconds * 0.1)


def _searches(seconds: float, dice: random.Random) -> Iterator[tuple[float, Call[Any]]]:
    for number in range(SESSIONS):
        moment = dice.uniform(0, seconds * 0.8)
        for length in range(1, len(TEXT) + 1):
            yield moment, search.job(f"session-{number}", TEXT[:length])
            moment += dice.uniform(0.05, 0.2)


def _nights(seconds: float, work: float) -> Iterator[tuple[float, Call[Any]]]:
    for number in range(NIGHTS):
        yield seconds * number / NIGHTS, maintain.job(NIGHT, work)
