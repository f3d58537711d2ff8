"""What no order of events may do to chains, judged by the store's own words alone: the model has no say here.

There is one job per place of a chain, and the next one if and only if the one before it completed with it; and nobody
is blocked who follows nobody and whose blockers have all ended.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping

from onejob.core.job import Job, State
from onejob.core.lifecycle import Settlement
from onejob.store import Blocker


class ChainWatch:
    """An observer of how chains go on."""

    def __init__(self) -> None:
        self._made: set[str] = set()
        """The jobs on record that settlements have made."""
        self._before: dict[str, str] = {}
        """After which job each of them was made."""
        self._jobs: Mapping[str, Job] = {}

    def settled(self, done: Iterable[Settlement], answers: Iterable[str]) -> None:
        """Attempts were ended, some of them so that their chains go on."""
        for one, answer in zip(done, answers, strict=True):
            then = one.then if answer == "done" and one.move == "complete" else None
            if then is not None and then.id not in self._jobs:
                self._made.add(then.id)
                self._before[then.id] = one.lease.id

    def look(self, jobs: Mapping[str, Job]) -> list[Job]:
        """What stands on record; returns who is blocked by others that it must be asked about."""
        self._jobs = jobs
        chains: dict[str, dict[int, Job]] = defaultdict(dict)
        for job in jobs.values():
            assert job.chain_index not in chains[job.chain], f"{job.id} is not alone at its place"
            chains[job.chain][job.chain_index] = job
        lost = {id for id in self._made - jobs.keys() if self._before.get(id) in jobs}
        assert not lost, f"{lost} are missing, although the jobs before them are there"
        for chain, places in chains.items():
            assert sorted(places) == list(range(len(places))), f"{chain} has jobs at {sorted(places)} only"
            later = {job.id for index, job in places.items() if index}
            assert later <= self._made, f"{chain} went on with {later - self._made}, which nobody asked for"
            unfinished = [places[index].state for index in range(len(places) - 1)]
            assert set(unfinished) <= {State.COMPLETED}, f"{chain} went on after {unfinished}"
        self._made &= jobs.keys()
        self._before = {id: before for id, before in self._before.items() if id in self._made}
        return [
            job for job in jobs.values() if job.state is State.BLOCKED and job.blockers and not job.follows
        ]

    def waits(self, job: Job, blockers: Iterable[Blocker]) -> None:
        """A job is blocked by these alone."""
        states = [one.state for one in blockers]
        assert any(state is not None and not state.ended for state in states), (
            f"{job.id} waits for ever: its blockers are {states}"
        )
