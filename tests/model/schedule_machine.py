"""The state machine with schedules: they are put, paused, removed and fired by several who read early and write late,
and by clocks that jump, while their jobs meet all the others.
"""

from __future__ import annotations

from dataclasses import replace

from hypothesis import strategies as st
from hypothesis.stateful import rule
from machine import Draw, StoreBesideModel, calls
from schedule_pair import SchedulePair
from sights import EVERYTHING

from onejob.testing.records import Call
from onejob.testing.timetable import MISSED, Wish

IDS = ("s1", "s2")
SHORT, LONG = 1_000, 70_000
GRIDS = (
    *(Wish(period=period) for period in (SHORT, SHORT, 2_500, LONG)),
    *(Wish(period=period, from_zero=True) for period in (60_000, 300_000)),
)
LEADS = (0, 0, -1, 1, SHORT, -SHORT, 3 * SHORT, MISSED, LONG + MISSED, 400_000, -LONG, -400_000)
ACTIONS = (
    *("put_schedule",) * 2,
    *("change_the_timing",) * 2,
    *("tick",) * 5,
    *("see_due", "fire", "write") * 2,
    *("pause_schedule",) * 2,
    *("jump_to_a_slot",) * 4,
    *("jump", "drop_schedule", "put_anew", "go_back", "look"),
    *("enqueue", "enqueue_again", "claim", "end_an_attempt", "advance", "amend", "prune", "crash"),
)


class SchedulesBesideModel(StoreBesideModel):
    """Subclasses say how to open the store."""

    make_pair = SchedulePair
    pair: SchedulePair
    live = None  # what else there is in life is among the actions below, but less of it

    @rule(actions=st.lists(st.sampled_from(ACTIONS), min_size=1, max_size=12), data=st.data())
    def live_by_the_clock(self, actions: list[str], data: st.DataObject) -> None:
        """A stretch of life with schedules."""
        for action in actions:
            getattr(self, action)(data.draw)

    def put_schedule(self, draw: Draw) -> None:
        """Somebody puts one; another may come in between."""
        id = draw(st.sampled_from(IDS))
        found = self.pair.model.schedules.get(id)
        wish = self._wish(draw)
        if found is not None and draw(st.booleans()):
            wish = replace(found.wish, call=wish.call)
        draft = self.pair.draft(id, wish)
        if draft is not None and draw(st.integers(0, 3)):
            self.pair.write(draft)

    def change_the_timing(self, draw: Draw) -> None:
        """Somebody gives one another grid."""
        if schedules := self.pair.model.schedules:
            id = draw(st.sampled_from(sorted(schedules)))
            grid = draw(st.sampled_from(GRIDS))
            self.pair.put(id, replace(schedules[id].wish, period=grid.period, from_zero=grid.from_zero))

    def pause_schedule(self, draw: Draw) -> None:
        """Somebody pauses or resumes one; those that are paused are resumed more often."""
        if schedules := self.pair.model.schedules:
            id = draw(st.sampled_from(sorted(schedules)))
            paused = not schedules[id].paused if draw(st.integers(0, 3)) else draw(st.booleans())
            draft = self.pair.draft_pause(id, paused=paused)
            if draft is not None and draw(st.integers(0, 3)):
                self.pair.write(draft)
            if schedules[id].paused and draw(st.booleans()):
                self.pair.fire(self.pair.see(id))

    def write(self, draw: Draw) -> None:
        """Records that were decided on once are written, some of them again."""
        if drafts := self.pair.drafts:
            back = st.integers(1, min(len(drafts), 5))
            self.pair.write(*(len(drafts) - draw(back) for _ in range(draw(st.integers(1, 2)))))

    def drop_schedule(self, draw: Draw) -> None:
        """Somebody removes one, and perhaps puts it anew at once."""
        id = draw(st.sampled_from(IDS))
        self.pair.drop(id)
        if draw(st.booleans()):
            self.pair.put(id, self._wish(draw))

    def put_anew(self, draw: Draw) -> None:
        """One is removed and put anew, while others are still about to fire or to change the old one."""
        if schedules := self.pair.model.schedules:
            id = draw(st.sampled_from(sorted(schedules)))
            self.pair.lead = max(self.pair.lead, schedules[id].next - self.pair.clock.now)
            self.pair.see_due()
            self.pair.draft_pause(id, paused=not schedules[id].paused)
            self.pair.drop(id)
            self.pair.lead += draw(st.sampled_from((1, SHORT)))
            self.pair.put(id, self._wish(draw))
            for action in draw(st.permutations((self.fire, self.write))):
                action(draw)

    def see_due(self, draw: Draw) -> None:
        """The first half of a tick."""
        self.pair.see_due(draw(st.sampled_from((EVERYTHING, 1))))

    def fire(self, draw: Draw) -> None:
        """The second half of some tick, not for the first time perhaps."""
        if firings := self.pair.firings:
            back = st.integers(1, min(len(firings), 6))
            self.pair.fire(*(len(firings) - draw(back) for _ in range(draw(st.integers(1, 3)))))

    def tick(self, draw: Draw) -> None:
        """Both halves."""
        self.pair.tick()

    def jump(self, draw: Draw) -> None:
        """The clock of those who decide is set forward or back."""
        self.pair.lead = draw(st.sampled_from(LEADS))

    def jump_to_a_slot(self, draw: Draw) -> None:
        """It is set to about a slot that is due, or to where that has just been missed."""
        if schedules := self.pair.model.schedules:
            slot = schedules[draw(st.sampled_from(sorted(schedules)))].next
            edge = draw(st.sampled_from((0, 0, -1, 1, SHORT, MISSED - 1, MISSED)))
            self.pair.lead = slot + edge - self.pair.clock.now

    def go_back(self, draw: Draw) -> None:
        """It is set back to before a slot that has been spent; and then somebody comes along."""
        spent = {id: one.last for id, one in self.pair.model.schedules.items() if one.last is not None}
        if spent:
            id = draw(st.sampled_from(sorted(spent)))
            self.pair.lead = spent[id] - draw(st.sampled_from((1, SHORT, MISSED))) - self.pair.clock.now
            action = draw(st.sampled_from((self.change_the_timing, self.pause_schedule, self.tick)))
            action(draw)

    def _wish(self, draw: Draw) -> Wish:
        call: Call = draw(calls())
        return replace(
            draw(st.sampled_from(GRIDS)),
            call=replace(call, lane=self._lane(draw, call.queue)),
            lets_go=draw(st.booleans()),
            declared=draw(st.sampled_from((False, False, True))),
        )
