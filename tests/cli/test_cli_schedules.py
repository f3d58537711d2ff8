"""`onejob schedules`: the list, what comes next, and pausing, running and removing one; the jobs of a schedule."""

from __future__ import annotations

import asyncio
import datetime as dt
import re
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest
from commands import URL, Cli, Terminal, on_every_store, run
from shop import Shop

from onejob import Cron, Every, Unique
from onejob.core.job import JobId
from onejob.core.schedule import Schedule
from onejob.core.timing import as_datetime
from onejob.testing import FakeClock, tick

INSTANT = r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z"
SHOWN = r"\d{4}-\d\d-\d\d \d\d:\d\d:\d\dZ"


class Kiosk(Shop):
    """A shop whose clock was set two minutes ago, and stands: the commands have the real one."""

    def __init__(self, url: str) -> None:
        self.clock = FakeClock(int(time.time() * 1000) - 120_000)
        super().__init__(url, clock=self.clock)

    def stored(self, id: str) -> Schedule:
        [found] = asyncio.run(self.app.store.schedules([id]))
        return found

    def break_zone(self, id: str) -> None:
        """As if this machine did not know it."""
        stored = self.stored(id)
        elsewhere = stored.definition.replace(b"Europe/Paris", b"Mars/Olympus")
        moved = msgspec.structs.replace(stored, definition=elsewhere, revision=stored.revision + 1)
        assert asyncio.run(self.app.store.put_schedules([moved])) == [True]


def written(moment: dt.datetime | None) -> str:
    """As programs read it."""
    assert moment is not None
    return moment.isoformat(timespec="milliseconds").replace("+00:00", "Z")


@pytest.fixture
def kiosk(url: str) -> Iterator[Kiosk]:
    made = Kiosk(url)
    yield made
    made.app.close()


@on_every_store
def test_schedules_are_listed_with_next_and_last_runs(cli: Cli, kiosk: Kiosk) -> None:
    assert cli.at("migrate").code == 0
    nothing = cli.at("schedules")
    assert (nothing.code, nothing.out, nothing.talk) == (3, "", "There are no schedules in the store.\n")
    kiosk.app.schedule("failing", Every(60), kiosk.fail.job(1))
    kiosk.app.schedules.put("daily", Cron("0 8 * * *", tz="Europe/Paris"), kiosk.send.job("u1"))
    tick(kiosk.app)
    kiosk.clock.advance(60)
    tick(kiosk.app)
    kiosk.drain()
    kiosk.app.schedules.pause("daily")
    outcome = cli.at("schedules")
    assert (outcome.code, outcome.talk) == (0, "")
    daily, failing = outcome.lines
    assert daily == ["daily", "0 8 * * * Europe/Paris", "shop.send", "", "", "", "", "0", "put", "paused"]
    job = kiosk.stored("failing").job
    assert failing[:3] == ["failing", "every 60 s", "shop.fail"]
    assert re.fullmatch(INSTANT, failing[3])
    assert re.fullmatch(INSTANT, failing[4])
    assert failing[5:] == ["failed", job, "1", "declared", ""]


def test_as_json_nothing_is_left_out(cli: Cli, kiosk: Kiosk) -> None:
    put = kiosk.app.schedules.put("often", Every(60), kiosk.fail.job(1), catch_up="none")
    [data] = cli.at("schedules", "--json").json_lines
    assert data.pop("since") < data["next"]
    assert data == {
        "schedule": "often",
        "timing": "every 60 s",
        "task": "shop.fail",
        "queue": "mail",
        "next": written(put.next_run),
        "last": None,
        "last_job": None,
        "last_outcome": None,
        "last_job_state": None,
        "fired": 0,
        "declared": False,
        "paused": False,
        "catch_up": "none",
        "problem": None,
    }
    kiosk.app.schedules.pause("often")
    [data] = cli.at("schedules", "--json").json_lines
    assert (data["next"], data["paused"]) == (None, True)


@on_every_store
def test_what_became_of_the_last_slot(cli: Cli, kiosk: Kiosk) -> None:
    once = kiosk.send.using(unique=Unique.in_flight(by="user"))
    kiosk.app.schedules.put("often", Every(30), once.job("u1"))
    kiosk.clock.advance(30)
    tick(kiosk.app)
    [data] = cli.at("schedules", "--json").json_lines
    assert (data["last_outcome"], data["last_job_state"]) == ("created", "waiting")
    assert cli.at("schedules").lines[0][5] == "waiting"
    kiosk.clock.advance(30)
    tick(kiosk.app)
    [data] = cli.at("schedules", "--json").json_lines
    assert (data["last_outcome"], data["last_job_state"], data["fired"]) == ("kept", "waiting", 2)
    assert cli.at("schedules").lines[0][5] == "kept"
    kiosk.drain()
    kiosk.clock.advance(30)
    tick(kiosk.app)
    kiosk.app.delete(kiosk.stored("often").job or JobId(""))
    [data] = cli.at("schedules", "--json").json_lines
    assert (data["last_outcome"], data["last_job_state"]) == ("created", "pruned")
    assert cli.at("schedules").lines[0][5] == "pruned"


def test_at_a_terminal_they_are_relative_and_absolute_and_fit(kiosk: Kiosk) -> None:
    kiosk.app.schedules.put("daily-report", Cron("0 8 * * *", tz="Europe/Paris"), kiosk.send.job("u1"))
    kiosk.app.schedules.put("often", Every(60), kiosk.send.job("u2"))
    kiosk.clock.advance(60)
    tick(kiosk.app)
    with Terminal("schedules", "--url", URL, columns=80) as terminal:
        assert terminal.end()[0] == 0
    assert re.search(rf"daily-report +0 8 \* \* \*.* {SHOWN} \(in [\d.]+ (s|min|h)\)", terminal.text)
    assert re.search(rf"often +every 60 s +{SHOWN} \([\d.]+ (ms|s) ago\) +waiting", terminal.text)
    assert max(map(len, terminal.text.splitlines())) <= 80
    with Terminal("schedules", "--url", URL, columns=200) as terminal:
        assert terminal.end()[0] == 0
    assert re.search(
        rf"{SHOWN} \([\d.]+ (s|min) ago\) +waiting +{kiosk.stored('often').job} +1 +put", terminal.text
    )


def test_upcoming_runs_of_all_schedules_in_order(cli: Cli, kiosk: Kiosk) -> None:
    kiosk.clock.now += 86_400_000  # so that nothing is due for a day
    first = kiosk.app.schedules.put("fast", Every(10), kiosk.send.job("u1"))
    kiosk.app.schedules.put("slow", Every(25), kiosk.fail.job(1))
    kiosk.app.schedules.put("paused", Every(1), kiosk.fail.job(1))
    kiosk.app.schedules.pause("paused")
    outcome = cli.at("schedules", "--upcoming", "5")
    assert [line[1:] for line in outcome.lines] == [
        ["fast", "shop.send"],
        ["fast", "shop.send"],
        ["slow", "shop.fail"],
        ["fast", "shop.send"],
        ["fast", "shop.send"],
    ]
    slots = [line["slot"] for line in cli.at("schedules", "--upcoming", "7", "--json").json_lines]
    assert len(slots) == 7
    assert slots == sorted(slots)
    assert slots[0] == written(first.next_run)
    with Terminal("schedules", "--upcoming", "2", "--url", URL) as terminal:
        assert terminal.end()[0] == 0
    assert re.search(rf"{SHOWN} \(in 24(\.0)? h\) +fast +shop\.send", terminal.text)
    for id in ("fast", "slow"):
        kiosk.app.schedules.pause(id)
    none = cli.at("schedules", "--upcoming", "5")
    assert (none.code, none.out) == (3, "")
    assert "No schedule is going to fire" in none.talk
    for wrong in ("0", "1001", "x"):
        assert cli.at("schedules", "--upcoming", wrong).code == 2


@on_every_store
def test_of_slots_that_have_passed_only_the_last_is_still_to_come(cli: Cli, kiosk: Kiosk) -> None:
    kiosk.app.schedules.put("often", Every(50), kiosk.send.job("u1"))
    since = kiosk.stored("often").since
    data = cli.at("schedules", "--upcoming", "2", "--json").json_lines
    slots = [as_datetime(since + after) for after in (100_000, 150_000)]
    assert [line["slot"] for line in data] == [written(slot) for slot in slots], "two minutes have passed"


APP = """
from onejob import App, Every
app = App("sqlite:///jobs.db")

@app.task(name="shop.send")
def send(user: str, count: int = 1) -> str: ...

app.schedule("new", Every(60), send.job("u1"))
"""


def test_with_an_app_the_list_knows_what_its_code_declares(kiosk: Kiosk, folder: Path) -> None:
    (folder / "jobs.py").write_text(APP)
    assert kiosk.app.count() == 0
    empty = run("schedules", "--app", "jobs:app")
    assert (empty.code, empty.out) == (3, "")
    assert empty.talk == (
        "Declared and not put yet, which a worker does when it starts: new.\nThere are no schedules in the store.\n"
    )
    kiosk.app.schedule("old", Every(60), kiosk.send.job("u1"))
    kiosk.app.schedule("others", Every(60), kiosk.fail.job(1))
    tick(kiosk.app)
    old, others = run("schedules", "--app", "jobs:app").lines
    assert (old[0], old[9]) == ("old", "no longer in the code")
    assert (others[0], others[9]) == ("others", ""), "its task is not of this app"
    kiosk.app.schedules.pause("old")
    assert run("schedules", "--app", "jobs:app").lines[0][9] == "paused, no longer in the code"


@on_every_store
def test_pause_and_resume(cli: Cli, kiosk: Kiosk) -> None:
    kiosk.app.schedules.put("often", Every(60), kiosk.send.job("u1"))
    paused = cli.at("schedules", "pause", "often")
    assert (paused.code, paused.out, paused.talk) == (0, "often: paused\n", "")
    assert kiosk.stored("often").paused
    assert cli.at("schedules", "pause", "often").out == "often: was paused already\n"
    resumed = cli.at("schedules", "resume", "often")
    assert resumed.code == 0
    assert re.fullmatch(rf"often: resumed; next {INSTANT} \(in [\d.]+ (ms|s)\)\n", resumed.out)
    assert not kiosk.stored("often").paused
    assert cli.at("schedules", "resume", "often").out.startswith("often: was not paused; next ")
    assert cli.at("schedules", "pause", "often", "--json").json["paused"] is True
    assert cli.at("schedules", "resume", "often", "--json").json["paused"] is False


@on_every_store
def test_run_makes_a_job_and_says_which(cli: Cli, kiosk: Kiosk) -> None:
    kiosk.app.schedules.put("daily", Cron("0 8 * * *"), kiosk.send.using(unique=Unique.in_flight()).job("u1"))
    done = cli.at("schedules", "run", "daily")
    assert (done.code, done.talk) == (0, "")
    [job] = kiosk.app.jobs("schedule:daily").jobs
    assert done.out == f"daily: created {job.id}\n"
    kept = cli.at("schedules", "run", "daily")
    assert (kept.code, kept.out) == (4, f"daily: kept, {job.id} holds its key (waiting)\n")
    told = cli.at("schedules", "run", "daily", "--json")
    assert (told.code, told.json) == (4, {"schedule": "daily", "job": job.id, "outcome": "kept"})


def test_remove_asks_and_leaves_the_jobs(cli: Cli, kiosk: Kiosk) -> None:
    kiosk.app.schedules.put("often", Every(60), kiosk.send.job("u1"))
    kiosk.clock.advance(60)
    tick(kiosk.app)
    refused = cli.at("schedules", "remove", "often")
    assert (refused.code, refused.out) == (2, "")
    assert "add --yes" in refused.talk
    with Terminal("schedules", "remove", "often", "--url", URL) as terminal:
        terminal.read_until("[y/N]: ")
        terminal.type("n\n")
        assert terminal.end()[0] == 1
    assert "Remove schedule often (every 60 s, shop.send)?" in terminal.text
    assert kiosk.app.schedules.get("often") is not None
    done = cli.at("schedules", "remove", "often", "--yes")
    assert (done.code, done.out, done.talk) == (0, "often: removed\n", "")
    assert kiosk.app.schedules.list() == []
    assert kiosk.app.count("schedule:often state:waiting") == 1


def test_removing_what_the_code_declares_says_that_it_comes_back(cli: Cli, kiosk: Kiosk) -> None:
    kiosk.app.schedule("often", Every(60), kiosk.send.job("u1"))
    tick(kiosk.app)
    done = cli.at("schedules", "remove", "often", "--yes", "--json")
    assert (done.code, done.json) == (0, {"schedule": "often", "removed": True})
    assert "If it is still declared in code, it comes back with the next worker that starts" in done.talk
    assert "onejob schedules pause often" in done.talk


@pytest.mark.usefixtures("own_modules")
@pytest.mark.parametrize("declares", [True, False])
def test_an_app_is_asked_whether_it_still_declares_what_is_removed(
    cli: Cli, kiosk: Kiosk, folder: Path, monkeypatch: pytest.MonkeyPatch, declares: bool
) -> None:
    monkeypatch.setattr(sys, "path", list(sys.path))
    kiosk.app.schedule("often", Every(60), kiosk.send.job("u1"))
    tick(kiosk.app)
    declaration = 'app.schedule("often", onejob.Every(60), send.job("u1"))\n' if declares else ""
    (folder / "clockwork.py").write_text(
        f'import onejob\n\napp = onejob.App("{URL}")\n\n\n@app.task(name="shop.send")\n'
        f"def send(user: str) -> None: ...\n\n\n{declaration}"
    )
    done = cli("schedules", "remove", "often", "--yes", "--app", "clockwork:app")
    assert (done.code, done.out) == (0, "often: removed\n")
    assert ("It is declared in code" in done.talk) is declares
    assert "comes back" in done.talk or not declares


@pytest.mark.parametrize("verb", ["pause", "resume", "run", "remove"])
def test_an_unknown_id_gets_a_hint(cli: Cli, kiosk: Kiosk, verb: str) -> None:
    kiosk.app.schedules.put("daily", Every(60), kiosk.send.job("u1"))
    told = cli.at("schedules", verb, "dayly")
    assert (told.code, told.out) == (3, "")
    assert told.talk == "There is no schedule 'dayly': did you mean 'daily'?\n"
    wrong = cli.at("schedules", verb, "no such")
    assert (wrong.code, wrong.out) == (2, "")
    assert "Schedule name 'no such' is not valid" in wrong.talk
    assert cli.at("schedules", verb).code == 2


def test_options_before_a_subcommand_are_not_forgotten(cli: Cli, kiosk: Kiosk) -> None:
    kiosk.app.schedules.put("daily", Every(60), kiosk.send.job("u1"))
    for before in (("--json",), ("--url", URL), ("--upcoming", "3")):
        told = cli("schedules", *before, "pause", "daily")
        assert (told.code, told.out) == (2, "")
        assert "Options go behind the command, as in onejob schedules pause ID --json." in told.talk
    assert not kiosk.stored("daily").paused
    assert cli.at("schedules", "paus", "daily").code == 2


@on_every_store
def test_one_that_cannot_be_read_is_shown_as_such(cli: Cli, kiosk: Kiosk) -> None:
    kiosk.app.schedules.put("lost", Cron("0 8 * * *", tz="Europe/Paris"), kiosk.send.job("u1"))
    kiosk.break_zone("lost")
    [line] = cli.at("schedules").lines
    assert line[:3] == ["lost", "?", ""]
    assert line[9].startswith("cannot be read: There is no time zone 'Mars/Olympus'")
    [data] = cli.at("schedules", "--json").json_lines
    assert data["timing"] is None
    assert "Mars/Olympus" in data["problem"]
    told = cli.at("schedules", "run", "lost")
    assert (told.code, told.out) == (2, "")
    assert "cannot be read here" in told.talk
    assert cli.at("schedules", "pause", "lost").out == "lost: paused\n"
    assert cli.at("schedules", "remove", "lost", "--yes").code == 0


@on_every_store
def test_a_job_names_its_schedule_and_slot(cli: Cli, kiosk: Kiosk) -> None:
    put = kiosk.app.schedules.put("often", Every(60), kiosk.send.job("u1"))
    kiosk.clock.advance(60)
    tick(kiosk.app)
    besides = kiosk.app.schedules.run("often")
    by_hand = kiosk.send.enqueue("u9").id
    id = kiosk.stored("often").job or ""
    assert [line[0] for line in cli.at("jobs", "schedule:often").lines] == [besides, id]
    shown = dict(cli.at("job", id).lines)
    assert (shown["schedule"], shown["slot"]) == ("often", written(put.next_run))
    data = cli.at("job", besides, "--json").json
    assert (data["schedule"], data["slot"]) == ("often", None)
    assert "schedule" not in dict(cli.at("job", by_hand).lines)
    assert cli.at("jobs", "schedule:other").code == 3
    assert cli.at("jobs", "schedule:no/such").code == 2
