"""Lanes, limits and revocation on the command line: lanes, limits, pause, resume, revoke, worker --rate, and why."""

from __future__ import annotations

import asyncio
import re
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from commands import PROGRAM, URL, Cli, Terminal, on_every_store
from shop import Shop

from onejob import Lane, Rate, State
from onejob.cli.rates import parse_rate, rate_text
from onejob.core.errors import InvalidOption
from onejob.core.job import Claimed, WorkerId
from onejob.core.lane import QueueLimits
from onejob.store import Ask, Beat
from onejob.testing import FakeClock

WORKER = WorkerId("w1")


class Harbour(Shop):
    """A shop with lanes: one ship at a time per pier, and two pilots, who sail three times a minute."""

    def __init__(self, url: str) -> None:
        self.clock = FakeClock(int(time.time() * 1000))
        super().__init__(url, clock=self.clock)

        @self.app.task(name="harbour.dock", lane=Lane(by="pier"))
        def dock(pier: str) -> None: ...

        @self.app.task(
            name="harbour.pilot",
            queue="mail",
            lane=Lane("pilots", concurrency=2, rate=Rate(3, per=60), on_retry="hold"),
        )
        def pilot(ship: int) -> None: ...

        self.dock, self.pilot = dock, pilot

    def start(self, queue: str, number: int = 1) -> list[Claimed]:
        """Let a worker start jobs, which go on."""

        async def start() -> list[Claimed]:
            await self.app.store.beat(Beat(WORKER, 600_000, queues=(queue,), host="here", concurrency=9))
            return (await self.app.store.claim(Ask(WORKER, (queue,), number))).jobs

        return asyncio.run(start())

    def state(self, id: str) -> State:
        job = self.app.job(id)
        assert job is not None
        return job.state


@pytest.fixture
def harbour(url: str) -> Iterator[Harbour]:
    made = Harbour(url)
    yield made
    made.app.close()


@pytest.mark.parametrize(
    ("text", "rate", "written"),
    [
        ("10/60s", Rate(10, per=60), "10/60s"),
        ("500/min", Rate(500, per=60), "500/60s"),
        ("5/1h", Rate(5, per=3600), "5/1h"),
        ("10/60", Rate(10, per=60), "10/60s"),
        ("3/2min", Rate(3, per=120), "3/2m"),
        ("1/day", Rate(1, per=86_400), "1/1d"),
        ("7/1h30m", Rate(7, per=5400), "7/90m"),
        ("2/1.5s", Rate(2, per=1.5), "2/1500ms"),
        ("100/s", Rate(100, per=1), "100/1s"),
        ("10 per 60 s", Rate(10, per=60), "10/60s"),
    ],
)
def test_a_rate_is_starts_and_a_time(text: str, rate: Rate, written: str) -> None:
    assert parse_rate(text) == rate
    assert rate_text(rate) == written
    assert parse_rate(written) == rate


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("10", "write starts/time, as in 10/60s, 500/min or 5/1h"),
        ("", "write starts/time"),
        ("/60s", "write starts/time"),
        ("-1/60s", "write starts/time"),
        ("1e3/60s", "write starts/time"),
        ("9" * 5000 + "/s", "write starts/time"),
        ("10/soon", "takes a length of time such as 90s, 10m, 1h30m or 7d, not 'soon'"),
        ("10/1.2.3s", "takes a length of time"),
        ("10/0s", "must be at least 0.001 seconds"),
        ("10/9999d", "must be at most ten years"),
        ("0/60s", "must be a whole number from 1 to 10000, not 0"),
        ("10001/s", "must be a whole number from 1 to 10000, not 10001"),
    ],
)
def test_what_is_no_rate_is_refused_with_a_remedy(text: str, why: str) -> None:
    with pytest.raises(InvalidOption, match="is no rate") as refused:
        parse_rate(text)
    assert why in str(refused.value)
    assert len(str(refused.value)) < 250


@pytest.mark.parametrize("arguments", [("limits", "mail"), ("worker", "shop:app")])
def test_a_wrong_rate_is_a_wrong_usage(cli: Cli, arguments: tuple[str, ...]) -> None:
    told = cli(*arguments, "--rate", "often")
    assert told.code == 2
    assert "Invalid value for '--rate': 'often' is no rate: write starts/time" in told.talk


@on_every_store
def test_lanes_are_listed_with_their_slots_and_whose_turn_it_is(cli: Cli, harbour: Harbour) -> None:
    assert cli.at("migrate").code == 0
    assert cli.at("lanes").code == 3
    first = [harbour.dock.enqueue(pier="north") for _ in range(3)]
    harbour.dock.enqueue(pier="south")
    harbour.pilot.enqueue(ship=1)
    harbour.start("default")
    outcome = cli.at("lanes")
    assert outcome.code == 0
    north, south, pilots = outcome.lines
    assert north == ["pier:north", "default", "1/1", "2", "", "", "release", first[1].id]
    assert south[:4] == ["pier:south", "default", "0/1", "1"]
    assert pilots[:7] == ["pilots", "mail", "0/2", "1", "3/60s", "", "hold"]
    assert [line[0] for line in cli.at("lanes", "--queue", "mail").lines] == ["pilots"]
    assert cli.at("lanes", "--queue", "other").code == 3
    assert cli.at("lanes", "--queue", "no such").code == 2
    some = cli.at("lanes", "--limit", "2")
    assert len(some.lines) == 2
    assert some.talk == "There are more: raise --limit, or name a --queue.\n"


@on_every_store
def test_lanes_as_json_name_their_holders(cli: Cli, harbour: Harbour) -> None:
    ids = [harbour.pilot.enqueue(ship=n).id for n in range(5)]
    harbour.start("mail", 5)
    [data] = cli.at("lanes", "--json").json_lines
    assert data == {
        "lane": "pilots",
        "queue": "mail",
        "concurrency": 2,
        "rate": {"max": 3, "per": 60.0},
        "on_retry": "hold",
        "taken": 2,
        "holders": ids[:2],
        "ready": 3,
        "head": ids[2],
        "opens": None,
    }


def test_lanes_say_when_their_rate_opens(cli: Cli, harbour: Harbour) -> None:
    id = harbour.app.enqueue_many([harbour.pilot.job(ship=ship) for ship in range(4)])[-1].id
    harbour.drain()
    harbour.dock.enqueue(pier="a pier with a rather long name, at the far end of the harbour")
    data = cli.at("lanes", "--json").json_lines[1]
    assert (data["ready"], data["taken"], data["head"]) == (1, 0, id)
    assert re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z", data["opens"])
    with Terminal("lanes", "--url", URL, columns=80) as terminal:
        assert terminal.end()[0] == 0
    assert re.search(r"lane +slots +ready +opens +head", terminal.text)
    assert re.search(rf"pilots +0/2 +1 +in \d[\d.]* s +{id}", terminal.text)
    assert max(map(len, terminal.text.splitlines())) <= 80


@on_every_store
def test_jobs_of_a_lane_are_found_and_show_it(cli: Cli, harbour: Harbour) -> None:
    first, second = (harbour.dock.enqueue(pier="north").id for _ in range(2))
    harbour.dock.enqueue(pier="south")
    harbour.start("default")
    found = cli.at("jobs", "lane:pier:north")
    assert [(line[0], line[1], line[5]) for line in found.lines] == [
        (second, "parked", "pier:north"),
        (first, "running", "pier:north"),
    ]
    assert cli.at("jobs", "lane:pier:west").code == 3
    assert "did you mean 'lane'?" in cli.at("jobs", "lan:x").talk
    assert dict(cli.at("job", second).lines)["lane"] == "pier:north"
    assert cli.at("job", second, "--json").json["lane"] == "pier:north"


@on_every_store
def test_limits_are_set_shown_and_removed(cli: Cli, shop: Shop) -> None:
    shop.fail.enqueue(1)
    assert (cli.at("limits").code, cli.at("limits").out) == (3, "")
    done = cli.at("limits", "mail", "--concurrency", "20", "--rate", "500/min")
    assert (done.code, done.talk) == (0, "")
    assert done.out == "mail: 20 at a time, 500/60s; 1 ready to start, 0 running\n"
    assert shop.app.limits() == {"mail": QueueLimits(20, Rate(500, per=60))}
    assert cli.at("limits").lines == [["mail", "20", "0", "500/60s", ""]]
    assert cli.at("limits", "--json").json == {
        "queue": "mail",
        "concurrency": 20,
        "rate": {"max": 500, "per": 60.0},
        "paused": False,
        "running": 0,
    }
    assert cli.at("limits", "mail", "--no-rate").out.startswith("mail: 20 at a time;")
    told = cli.at("limits", "mail", "--concurrency", "0", "--json")
    assert (told.code, told.json["concurrency"], told.json["rate"]) == (0, None, None)
    assert shop.app.limits() == {}
    assert cli.at("limits", "mail", "--no-rate").out.startswith("mail: no limits;")
    assert cli.at("limits", "mail").lines == [["mail", "", "0", "", ""]]


@pytest.mark.parametrize(
    ("arguments", "why"),
    [
        (("--concurrency", "5"), "say which, as in onejob limits mail"),
        (("mail", "--rate", "5/s", "--no-rate"), "exclude each other"),
        (("mail", "--concurrency", "-1"), "-1 is not in the range"),
        (("mail", "--concurrency", "10001"), "10001 is not in the range"),
        (("no such", "--concurrency", "1"), "Queue name 'no such' is not valid"),
        (("no such",), "Queue name 'no such' is not valid"),
    ],
)
def test_wrong_limits_are_a_wrong_usage(cli: Cli, shop: Shop, arguments: tuple[str, ...], why: str) -> None:
    shop.fail.enqueue(1)
    told = cli.at("limits", *arguments)
    assert (told.code, told.out) == (2, "")
    assert why in told.talk
    assert shop.app.limits() == {}


@on_every_store
def test_a_mistyped_queue_gets_a_hint(cli: Cli, shop: Shop) -> None:
    shop.fail.enqueue(1)
    hint = "No job, worker or task of queue 'mial' is known here: did you mean 'mail'?\n"
    shown = cli.at("limits", "mial")
    assert (shown.code, shown.out, shown.talk) == (3, "", hint)
    resumed = cli.at("resume", "mial")
    assert (resumed.code, resumed.out, resumed.talk) == (3, "", hint)
    paused = cli.at("pause", "mial")
    assert (paused.code, paused.talk) == (0, hint)
    assert shop.app.limits() == {"mial": QueueLimits(paused=True)}, "its jobs may come"
    assert cli.at("resume", "mial").code == 0
    assert cli.at("pause", "quite-another").talk.endswith("is known here.\n")


@on_every_store
def test_a_paused_queue_starts_nothing_until_it_is_resumed(cli: Cli, harbour: Harbour) -> None:
    harbour.fail.enqueue(1)
    harbour.fail.enqueue(2)
    harbour.start("mail")
    paused = cli.at("pause", "mail")
    assert (paused.code, paused.out) == (0, "mail: paused; 1 ready to start, 1 running\n")
    assert harbour.start("mail") == []
    assert cli.at("pause", "mail").out.startswith("mail: was paused already;")
    assert cli.at("limits").lines == [["mail", "", "1", "", "paused"]]
    resumed = cli.at("resume", "mail")
    assert (resumed.code, resumed.out) == (0, "mail: resumed; 1 ready to start, 1 running\n")
    assert len(harbour.start("mail")) == 1
    again = cli.at("resume", "mail")
    assert (again.code, again.out) == (0, "mail: was not paused; 0 ready to start, 2 running\n")
    assert cli.at("pause", "mail", "--json").json["paused"] is True
    assert cli.at("resume", "mail", "--json").json["paused"] is False
    assert cli.at("pause").code == 2
    assert cli.at("pause", "no such").code == 2


def test_status_shows_limits_and_pauses(cli: Cli, shop: Shop) -> None:
    shop.send.enqueue("u1")
    shop.app.queue("default").set_concurrency(4)
    shop.app.queue("mail").set_rate(Rate(10, per=3600))
    shop.app.queue("mail").pause()
    lines = cli.at("status").lines
    assert ["limits", "default", "4", "", ""] in lines
    assert ["limits", "mail", "", "10/1h", "paused"] in lines, "though it has no jobs"
    queues = cli.at("status", "--json").json["queues"]
    assert queues["default"]["limits"] == {"concurrency": 4, "rate": None, "paused": False}
    assert queues["mail"]["limits"] == {
        "concurrency": None,
        "rate": {"max": 10, "per": 3600.0},
        "paused": True,
    }
    assert queues["mail"]["counts"]["waiting"] == 0
    with Terminal("status", "--url", URL) as terminal:
        assert terminal.end()[0] == 0
    assert re.search(r"default +1 .* 4 at a time", terminal.text)
    assert re.search(r"mail .* paused, 10/1h", terminal.text)


def test_top_shows_lanes_and_limits(harbour: Harbour) -> None:
    harbour.dock.enqueue(pier="north")
    harbour.start("default")
    harbour.app.queue("mail").pause()
    with Terminal("top", "--every", "0.1", "--url", URL) as terminal:
        terminal.read_until("pier:north")
        terminal.type("q")
        assert terminal.end()[0] == 0
    assert re.search(r"mail +paused", terminal.text)


@on_every_store
def test_revoke_by_id_says_what_became_of_it(cli: Cli, harbour: Harbour) -> None:
    running, queued, other = (harbour.dock.enqueue(pier="north").id for _ in range(3))
    harbour.start("default")
    flagged = cli.at("revoke", running)
    assert (flagged.code, flagged.out, flagged.talk) == (0, "1 flagged (running, asked to stop)\n", "")
    assert cli.at("revoke", running, "--json").json == {"flagged": 1}
    assert cli.at("revoke", queued, "--json").json == {"revoked": 1}
    assert harbour.state(queued) is State.REVOKED
    ended = cli.at("revoke", queued)
    assert (ended.code, ended.out) == (3, "1 left alone (finished)\n")
    assert cli.at("revoke", queued, "--json").json == {"finished": 1}
    gone = cli.at("revoke", "ffffffff-ffff-7fff-bfff-ffffffffffff")
    assert (gone.code, gone.out) == (3, "1 not found\n")
    assert cli.at("revoke", "ffffffff-ffff-7fff-bfff-ffffffffffff", "--json").json == {"not_found": 1}
    assert cli.at("revoke", "ffffffff").code == 3
    assert cli.at("revoke", "no id").code == 2
    assert cli.at("revoke").code == 2
    assert harbour.state(other) is State.PARKED


@on_every_store
def test_revoke_of_many_shows_and_asks(cli: Cli, harbour: Harbour) -> None:
    ids = [harbour.dock.enqueue(pier="north").id for _ in range(7)]
    harbour.dock.enqueue(pier="south")
    harbour.start("default")
    refused = cli.at("revoke", "lane:pier:north")
    assert (refused.code, refused.out) == (2, "")
    assert refused.talk.startswith("Revoke 7 jobs:\n")
    assert refused.talk.count("harbour.dock") == 5
    assert "and 2 more" in refused.talk
    assert "add --yes" in refused.talk
    two = cli.at("revoke", ids[5], ids[6])
    assert (two.code, two.out) == (2, "")
    assert two.talk.startswith("Revoke 2 jobs:\n")
    assert harbour.app.count("state:revoked") == 0
    assert cli.at("revoke", ids[5], ids[6], "--yes").out == "2 revoked\n"
    done = cli.at("revoke", "lane:pier:north", "--yes")
    assert (done.code, done.out) == (0, "1 flagged (running, asked to stop), 4 revoked\n")
    assert harbour.app.count("state:waiting,parked") == 1
    nothing = cli.at("revoke", "task:nothing", "--yes")
    assert (nothing.code, nothing.out) == (3, "")
    assert "No job matches that could be revoked." in nothing.talk
    assert cli.at("revoke", "state:revoked", "--yes").code == 3, "they have ended"
    assert cli.at("revoke", "lane:pier:south", "--yes", "--json").json == {"revoked": 1}


@on_every_store
def test_why_says_what_holds_a_job_up(cli: Cli, harbour: Harbour) -> None:
    first, second, third = (harbour.dock.enqueue(pier="north").id for _ in range(3))
    harbour.start("default")
    told = cli.at("why", third)
    assert told.code == 0
    assert f"parked behind job {first} (running)" in told.out
    assert "1 job of its lane is ahead of it." in told.out
    data = cli.at("why", third, "--json").json
    assert (data["lane"], data["lane_holders"], data["ahead"]) == ("pier:north", [first], 1)
    harbour.app.queue("default").set_concurrency(1)
    cli.at("pause", "default")
    told = cli.at("why", second)
    assert "Queue paused" in told.out
    assert "The queue limit of 1 is full" in told.out
    assert cli.at("why", second, "--json").json["queue_paused"] is True


@on_every_store
def test_why_says_when_a_rate_opens(cli: Cli, harbour: Harbour) -> None:
    last = [harbour.pilot.enqueue(ship=ship) for ship in range(4)][-1]
    harbour.drain()
    assert re.search(r"The rate window of its lane opens in \d+(\.\d)? s", cli.at("why", last.id).out)
    assert 0 < cli.at("why", last.id, "--json").json["opens_in"] <= 60


def test_a_worker_takes_a_rate_of_its_own(folder: Path, harbour: Harbour) -> None:
    (folder / "rated.py").write_text(
        "from onejob import App\napp = App('sqlite:///jobs.db')\n"
        "@app.task(name='shop.send')\ndef send(user: str, count: int = 1) -> str: return user\n"
    )
    first, second, *others = [harbour.send.enqueue(f"u{n}") for n in range(5)]
    command = [*PROGRAM, "worker", "rated:app", "--rate", "2/1h", "--quiet"]
    with subprocess.Popen(command) as process:
        try:
            assert [first.result(timeout=60), second.result(timeout=60)] == ["u0", "u1"]
        finally:
            process.terminate()
        assert process.wait(60) == 0
    assert [harbour.state(receipt.id) for receipt in others] == [State.WAITING] * 3


def test_enqueue_says_that_it_changed_a_lane(cli: Cli, folder: Path) -> None:
    for number in (1, 2):
        (folder / f"lanes{number}.py").write_text(
            "from onejob import App, Lane\napp = App('sqlite:///jobs.db')\n"
            f"@app.task(name='load', lane=Lane('imports', concurrency={number}))\ndef load() -> None: ...\n"
        )
    first = cli("enqueue", "--app", "lanes1:app", "load", "--json").json
    assert (first["lane"], first["former_lane"]) == ("imports", None)
    second = cli("enqueue", "--app", "lanes2:app", "load", "--json").json
    assert second["former_lane"] == {"concurrency": 1, "rate": None, "on_retry": "release"}
    assert 'lane "imports" now takes 2 at a time, where it took 1 at a time' in second["text"]
