"""How a worker is: what a health check answers."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from enum import StrEnum


class Phase(StrEnum):
    """Where a worker is in its life."""

    STARTING = "starting"
    SERVING = "serving"
    DRAINING = "draining"
    """It takes no more jobs and ends once those under way have."""
    STOPPED = "stopped"


@dataclass(frozen=True, slots=True, kw_only=True)
class Health:
    """A worker at one moment. It is healthy while it serves and its heartbeat reaches the store."""

    worker: str
    phase: Phase
    fresh: bool
    """The last heartbeat still covers its jobs."""
    beat_age: float | None
    """Seconds since the last heartbeat; None before the first."""
    running: int
    queues: tuple[str, ...]

    @property
    def alive(self) -> bool:
        """True if there is nothing to worry about."""
        return self.phase is Phase.SERVING and self.fresh

    def as_data(self) -> dict[str, object]:
        """The same for JSON."""
        age = None if self.beat_age is None else round(self.beat_age, 3)
        return {"alive": self.alive, **asdict(self), "beat_age": age}
