"""Chains and blockers of the reference model: which jobs belong together, how a chain stands, and who waits for whom.

A chain is looked up each time among all jobs; only what has yet to end is kept, with the job that waits for it.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

from onejob.testing.records import LIVE, ModelJob


class Unheard(Exception):
    """A job was to wait for one that is not on record."""


@dataclass
class Lineage:
    """All jobs, and how they hang together."""

    jobs: dict[str, ModelJob] = field(default_factory=dict[str, ModelJob])

    def chain(self, id: str) -> list[ModelJob]:
        """All jobs of the chain that a job belongs to, by place; none if the job is not on record."""
        if id not in self.jobs:
            return []
        root = self.jobs[id].chain
        return sorted((job for job in self.jobs.values() if job.chain == root), key=lambda job: job.index)

    def last(self, id: str) -> ModelJob | None:
        """The last job of that chain."""
        chain = self.chain(id)
        return chain[-1] if chain else None

    def standing(self, id: str) -> str | None:
        """How a chain stands: as its first job until it has gone on, then running until its last job has ended."""
        last = self.last(id)
        if last is None:
            return None
        return "running" if last.index and last.state in LIVE else last.state

    def chains_of(self, ids: Iterable[str]) -> tuple[str, ...]:
        """The chains that some jobs belong to, each once, in that order."""
        unheard = [id for id in ids if id not in self.jobs]
        if unheard:
            raise Unheard(*unheard)
        return tuple(dict.fromkeys(self.jobs[id].chain for id in ids))

    def living(self, chains: Iterable[str]) -> set[str]:
        """Those of some chains that have yet to end."""
        return {chain for chain in chains if self.standing(chain) in LIVE}

    def is_stranded(self, job: ModelJob) -> bool:
        """True if a chain that a job needs has ended and did not complete, or is gone."""
        states = {self.standing(chain) for chain in job.blockers}
        return not job.call.runs_anyway and bool(states & {"failed", "revoked", None})

    def is_awaited(self, chain: str) -> bool:
        """True if a live job waits for a chain, or has yet to read what it returned."""
        return any(chain in job.blockers for job in self.jobs.values() if job.state in LIVE)

    def waits_for(self, chain: str) -> set[str]:
        """The chains whose end a chain needs before it can go on."""
        found: set[str] = set()
        for job in self.chain(chain):
            if job.state in LIVE:
                found |= job.awaits | ({job.follows} if job.follows else set())
        return found

    def goes_round(self, own: str, blockers: Iterable[str]) -> bool:
        """True if one of these chains waits for `own`, at however many removes."""
        reached: set[str] = set()
        ahead = set(blockers)
        while ahead:
            reached |= ahead
            ahead = {chain for one in ahead for chain in self.waits_for(one)} - reached
        return own in reached
