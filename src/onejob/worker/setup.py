"""What a worker is given: the parts of an app it needs, and its settings, checked where they are made."""

from __future__ import annotations

import logging
import os
import secrets
import socket
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from datetime import timedelta
from typing import TYPE_CHECKING, Any, TypeAlias, cast

from onejob.core.errors import InvalidOption, shown
from onejob.core.job import WorkerId
from onejob.core.lane import Rate, checked_rate
from onejob.core.options import Seconds, check_name, millis, whole_number
from onejob.hooks import Hooks
from onejob.plans import milliseconds
from onejob.store import Ask, Beat, JobStore, Retention

if TYPE_CHECKING:
    from onejob.core.schedule import Definition
    from onejob.intake.handle import Intake
    from onejob.tasks import Task
    from onejob.transactions import Owner

log = logging.getLogger("onejob.worker")

NamedBackoff: TypeAlias = Callable[[int, BaseException], "float | timedelta"]
"""A registered retry curve: failures so far and the error, to seconds."""

MAX_CONCURRENCY = 10_000
MAX_STOCK = 100_000
STOCK_PER_SLOT = 4
LEAST_STOCK = 100
"""How many jobs may be claimed before there is a slot for them, unless somebody says otherwise: so many for each slot, or
so many where there are few slots, because what a call costs a store hardly depends on those.
"""
BEATS_PER_LEASE = 3
BUSY_BEAT = 0.8
"""Seconds between heartbeats while jobs run, so that a revoked one is told within a second."""


@dataclass(frozen=True, slots=True)
class WorkerSetup:
    """The parts of an app that a worker works with."""

    store: JobStore
    tasks: Mapping[str, Task[..., Any]]
    backoffs: Mapping[str, NamedBackoff] = field(default_factory=dict[str, NamedBackoff])
    retention: Retention = field(default_factory=Retention)
    compresses: Callable[[str], bool] = lambda _: False
    """Whether results of jobs of a queue are compressed."""
    hooks: Hooks = field(default_factory=Hooks)
    where: str = ""
    """The store, fit to be shown."""
    client: Owner | None = None
    """By whom handlers open transactions."""
    clock: Callable[[], int] = milliseconds
    schedules: Mapping[str, Definition] = field(default_factory=dict[str, "Definition"])
    """The schedules that the app's code declares, by id."""
    intakes: Mapping[str, Intake] = field(default_factory=dict[str, "Intake"])
    """The intakes that it declares, by name."""


@dataclass(frozen=True, slots=True)
class ChildLimits:
    """How many processes for jobs there may be, and when one is replaced by a new one."""

    at_once: int
    max_jobs: int | None = 1_000
    max_memory: int | None = None
    """In bytes, looked at after each job."""

    @classmethod
    def checked(
        cls, children: int | None, max_jobs: int | None, max_memory: int | None, concurrency: int
    ) -> ChildLimits:
        """Check each limit; `max_memory` in MiB."""
        if children is None:
            children = min(concurrency, usable_cores())
        return cls(
            whole_number("children", children, 1, MAX_CONCURRENCY),
            None if max_jobs is None else whole_number("max_jobs_per_child", max_jobs, 1, 2**31),
            None
            if max_memory is None
            else whole_number("max_memory_per_child", max_memory, 1, 2**31) * 1024 * 1024,
        )


@dataclass(frozen=True, slots=True)
class Settings:
    """A worker's settings, checked; times in seconds."""

    queues: tuple[str, ...]
    concurrency: int
    stock: int
    rate: Rate | None
    children: ChildLimits
    lease: float
    heartbeat: float
    drain: float
    poll: float
    block_warning: float

    @classmethod
    def checked(
        cls,
        *,
        queues: tuple[str, ...],
        concurrency: int,
        stock: int | None,
        rate: Rate | None,
        children: int | None,
        max_jobs_per_child: int | None,
        max_memory_per_child: int | None,
        lease: Seconds,
        heartbeat: Seconds | None,
        drain: Seconds,
        poll: Seconds,
        block_warning: Seconds,
    ) -> Settings:
        """Check each setting, and that the lease outlives missed heartbeats."""
        lease_ms = millis("lease", lease, minimum=300)
        beat_ms = lease_ms // BEATS_PER_LEASE
        if heartbeat is not None:
            beat_ms = millis("heartbeat", heartbeat, minimum=100)
        if lease_ms < beat_ms * BEATS_PER_LEASE:
            raise InvalidOption(
                f"lease must be at least three heartbeats, so that one missed beat loses no job: "
                f"{shown(lease)} seconds with a heartbeat of {shown(heartbeat)}; raise lease or lower heartbeat."
            )
        concurrency = whole_number("concurrency", concurrency, 1, MAX_CONCURRENCY)
        return cls(
            queues=queues,
            concurrency=concurrency,
            stock=max(STOCK_PER_SLOT * concurrency, LEAST_STOCK)
            if stock is None
            else whole_number("stock", stock, 0, MAX_STOCK),
            rate=checked_rate("rate", rate),
            children=ChildLimits.checked(children, max_jobs_per_child, max_memory_per_child, concurrency),
            lease=lease_ms / 1000,
            heartbeat=beat_ms / 1000,
            drain=millis("drain", drain, minimum=0) / 1000,
            poll=millis("poll", poll, minimum=10) / 1000,
            block_warning=millis("block_warning", block_warning, minimum=10) / 1000,
        )

    @property
    def busy_beat(self) -> float:
        """Seconds between heartbeats while jobs run."""
        return min(self.heartbeat, BUSY_BEAT)

    def ask(self, worker: WorkerId, limit: int, stock: int) -> Ask:
        """The wish for up to `limit` jobs, and `stock` more to wait here."""
        return Ask(worker, self.queues, limit, stock)

    def beat(self, worker: WorkerId) -> Beat:
        """The worker's sign of life, without progress."""
        return Beat(
            worker,
            round(self.lease * 1000),
            queues=self.queues,
            host=socket.gethostname(),
            pid=os.getpid(),
            concurrency=self.concurrency,
        )


def served_queues(wanted: Iterable[str] | str | None, setup: WorkerSetup) -> tuple[str, ...]:
    """The queues to serve, in order: those asked for, or else every queue that the app's code names."""
    if isinstance(wanted, str):
        wanted = wanted.split(",")
    names = queues_in_code(setup) if wanted is None else _listed(wanted)
    checked = tuple(dict.fromkeys(check_name("queue", name) for name in names))
    if wanted is not None and not checked:
        raise InvalidOption(
            "queues must name at least one queue; leave it out to serve those that the app names."
        )
    return checked or ("default",)


def queues_in_code(setup: WorkerSetup) -> list[str]:
    """Every queue that a task names, or a declared schedule or an intake with `using(queue=…)`."""
    return [
        *(task.queue for task in setup.tasks.values()),
        *(definition.template.queue for definition in setup.schedules.values()),
        *(intake.queue for intake in setup.intakes.values()),
    ]


def _listed(wanted: Iterable[str]) -> list[str]:
    if not isinstance(cast("object", wanted), Iterable):
        raise InvalidOption(
            f'queues must be names of queues, as in ["mail", "default"] or "mail,default", not {shown(wanted)}.'
        )
    return [*wanted]


def usable_cores() -> int:
    """How many cores this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def new_worker_id() -> WorkerId:
    """A name that no other worker has, not even an earlier one of the same process."""
    return WorkerId(f"w-{secrets.token_hex(6)}")
