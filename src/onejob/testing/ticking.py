"""What the keepers of a worker do now and then, done once, here and now: fire schedules, take rows in."""

from __future__ import annotations

from onejob.app import App
from onejob.keepers import Scheduler


def tick(app: App) -> int:
    """Fire the schedules that are due by the app's clock and take in rows; returns how many jobs that made.

    Schedules that the code declares are put first, as by a worker that starts. Run the jobs with `drain`.
    """
    return app.client.call(atick(app), instead="await atick(app)")


async def atick(app: App) -> int:
    """As `tick`, in async code."""
    made = await Scheduler(app.store, app.declared_schedules, app.tasks).tick()
    for intake in app.intakes.values():
        made += (await intake.arun()).taken
    return made
