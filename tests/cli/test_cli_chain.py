"""Chains on the command line: chain as a tree, as lines and as JSON; jobs, job, retry and delete where there is one."""

from __future__ import annotations

import asyncio
import re
import time
from collections.abc import Iterator
from typing import Any

import pytest
from commands import URL, Cli, Outcome, Terminal, on_every_store
from works import Works

from onejob import State
from onejob.cli.chain_drawing import Twigs
from onejob.core.job import WorkerId
from onejob.store import Ask, Beat

ISO = re.compile(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z")
NOBODY = "ffffffff-ffff-7fff-bfff-ffffffffffff"


@pytest.fixture
def works(url: str) -> Iterator[Works]:
    made = Works(url)
    yield made
    made.app.close()


def start(works: Works, queue: str, number: int = 1) -> list[str]:
    """Let a worker start jobs, which go on."""

    async def start() -> list[str]:
        await works.app.store.beat(Beat(WorkerId("w1"), 600_000, queues=(queue,), concurrency=9))
        return [job.id for job in (await works.app.store.claim(Ask(WorkerId("w1"), (queue,), number))).jobs]

    return asyncio.run(start())


def drawn(*arguments: str, columns: int = 160) -> list[str]:
    """What a terminal shows, line by line."""
    with Terminal("chain", *arguments, "--url", URL, columns=columns) as terminal:
        code, _ = terminal.end()
    assert code == 0, terminal.text
    return [line.rstrip() for line in terminal.text.splitlines()]


def about(outcome: Outcome, *columns: int) -> list[tuple[str, ...]]:
    assert outcome.code == 0, outcome
    return [tuple(line[column] for column in columns) for line in outcome.lines]


def test_a_chain_is_drawn_with_states_and_times_and_marks_the_job_asked_for(works: Works) -> None:
    first = works.build.enqueue(1).id
    works.drain()
    middle, last = (job.id for job in works.app.chain(first)[1:])
    heading, *lines = drawn(middle)
    assert heading.split() == ["job", "state", "task", "ran", "waited", "try", "age", "queue"]
    assert len(lines) == 3
    assert re.fullmatch(rf"0 {first} +completed +build +2 s +0 ms +1 +\d+(\.\d)? min +default", lines[0])
    assert re.fullmatch(rf"1 {middle} ◀ +completed +paint +3 s +0 ms +1 +[\d.]+ min +paint", lines[1])
    assert re.fullmatch(rf"2 {last} +completed +paint +3 s +0 ms +1 +[\d.]+ min +paint", lines[2])


def test_blockers_stand_below_the_job_that_waits_for_them_and_theirs_below_them(works: Works) -> None:
    built, crooked = works.build.enqueue(1, steps=1), works.inspect.enqueue(7)
    waits = works.waiting_for(built, crooked, on_blocker_failure="run")
    top = works.waiting_for(waits, built)
    _, *lines = drawn(top.id, columns=80)
    assert [line[:42].rstrip() for line in lines] == [
        f"0 {top.id} ◀",
        f"  ├ {waits.id}",
        f"  │ ├ {built.id}",
        f"  │ └ {crooked.id}",
        f"  └ {built.id}",
    ]
    works.drain()
    _, *lines = drawn(waits.id)
    assert len(lines) == 4
    assert lines[0].startswith(f"0 {waits.id} ◀")
    assert re.match(rf"  ├ {built.id} +completed +paint +3 s", lines[1]), "by its last job"
    assert re.match(rf"  └ {crooked.id} +failed +inspect", lines[2])
    assert lines[3] == "      ValueError: order 7 is crooked"


def test_who_waits_for_a_chain_is_told(works: Works, cli: Cli) -> None:
    part = works.build.enqueue(1, steps=0)
    waiting = [works.waiting_for(part).id for _ in range(4)]
    assert cli.at("chain", part.id, "--json").json["waited_for_by"] == waiting
    assert [line for line in cli.at("chain", part.id).lines if line[0] == "waiting"] == [
        ["waiting", "0", id] for id in waiting
    ]
    shown = drawn(part.id)
    assert [line for line in shown if "waits for this chain" in line] == [
        f"Job {id} waits for this chain." for id in waiting[:3]
    ]
    assert shown[-1] == "Others do, too."


def test_running_delayed_and_blocked_jobs_say_how_long(works: Works) -> None:
    chain = works.build.enqueue(-1).id
    waiting = works.waiting_for(chain).id
    works.drain()
    running = works.send.enqueue("u1").id
    works.clock.advance(5)
    start(works, "default")
    [delayed] = [line for line in drawn(chain) if line.startswith("2 ")]
    assert re.search(r"delayed +paint +due in [\d.]+ min", delayed)
    [shown] = [line for line in drawn(running) if line.startswith("0 ")]
    assert re.search(r"running +send +[\d.]+ min +5 s +1 ", shown)
    [blocked] = [line for line in drawn(waiting) if line.startswith("0 ")]
    assert re.search(r"blocked +assemble +[\d.]+ min +", blocked)


@pytest.mark.parametrize("columns", [80, 100, 160])
def test_ids_are_whole_and_lines_fit(works: Works, columns: int) -> None:
    inner = works.inspect.enqueue(1)
    waits = [inner.id]
    for _ in range(4):
        waits.append(works.waiting_for(waits[-1], on_blocker_failure="run").id)
    works.drain()
    lines = drawn(waits[-1], "--depth", "9", columns=columns)
    assert max(map(len, lines)) <= columns
    for id in waits:
        assert sum(id in line for line in lines) == 1
    assert all(
        re.search(r"(completed|failed) +(assem|inspe)\S+ +\d+ ms", line) for line in lines if "-7" in line
    )
    assert lines[0].split()[:4] == ["job", "state", "task", "time" if columns == 80 else "ran"]


def test_piped_lines_say_what_they_are_about(cli: Cli, works: Works) -> None:
    built, crooked = works.build.enqueue(1, steps=1), works.inspect.enqueue(7)
    waits = works.waiting_for(crooked, built)
    works.drain()
    outcome = cli.at("chain", waits.id)
    assert "\x1b" not in outcome.out
    assert "└" not in outcome.out
    assert about(outcome, 0, 1, 2, 3, 4, 5, 6) == [
        ("job", "0", waits.id, "0", "failed", "works.assemble", "default"),
        ("blocker", "1", crooked.id, "0", "failed", "works.inspect", "default"),
        ("blocker", "1", built.id, "1", "completed", "works.paint", "paint"),
    ]
    assert [line[10] for line in outcome.lines] == ["asked", "", ""]
    assert outcome.lines[0][11].startswith(f"BlockerFailed: it waited for job {crooked.id}, which failed")
    assert outcome.lines[1][11] == "ValueError: order 7 is crooked"
    assert outcome.lines[0][8] == "", "it never started"
    for at in (7, 8, 9):
        assert ISO.fullmatch(outcome.lines[2][at])


@on_every_store
def test_json_has_the_whole_structure(cli: Cli, works: Works) -> None:
    built, crooked = works.build.enqueue(1, steps=1), works.inspect.enqueue(7)
    waits = works.waiting_for(crooked, built, on_blocker_failure="run")
    works.drain()
    data = cli.at("chain", waits.id, "--json").json
    assert (data["chain"], data["asked"], data["state"], data["length"]) == (
        waits.id,
        waits.id,
        "completed",
        1,
    )
    assert (data["left_out"], data["waited_for_by"]) == ({}, [])
    [job] = data["jobs"]
    assert (job["id"], job["result"], job["blockers"]) == (waits.id, 2, 2)
    assert job["waited"] >= 5
    assert job["ran"] == 0
    failed, completed = job["blocker_chains"]
    assert (failed["id"], failed["chain"], failed["state"]) == (crooked.id, crooked.id, "failed")
    assert (completed["chain"], completed["id"]) == (built.id, works.last(built.id))
    assert (completed["chain_index"], completed["result"], completed["ran"]) == (1, "painted", 3)
    assert (completed["blocker_chains"], completed["left_out"], completed["folded"]) == ([], {}, 0)
    chain = cli.at("chain", completed["id"], "--json").json
    assert (chain["chain"], chain["asked"], chain["length"]) == (built.id, completed["id"], 2)
    assert [step["chain_index"] for step in chain["jobs"]] == [0, 1]


def test_many_blockers_are_told_in_numbers(cli: Cli, works: Works) -> None:
    parts = works.app.enqueue_many([works.build.job(n, steps=0) for n in range(10_000)])
    waits = works.waiting_for(*parts).id
    started = start(works, "default", 3)
    took = time.monotonic()
    outcome = cli.at("chain", waits)
    assert about(outcome, 0)[1:-1] == [("blocker",)] * 10
    assert {line[2] for line in outcome.lines[1:4]} == set(started), "who tells most is shown"
    assert outcome.lines[-1] == ["more", "1", "waiting", "9990"]
    assert time.monotonic() - took < 10
    assert drawn(waits)[-1] == "  └ and 9,990 more: 9,990 waiting"
    [job] = cli.at("chain", waits, "--json", "--limit", "1").json["jobs"]
    assert job["left_out"] == {"waiting": 9_997, "running": 2}
    assert len(job["blocker_chains"]) == 1
    [job] = cli.at("chain", waits, "--json", "--all").json["jobs"]
    assert [part["chain"] for part in job["blocker_chains"]] == [part.id for part in parts]
    assert job["left_out"] == {}
    [job] = cli.at("chain", waits, "--json", "--limit", "2000").json["jobs"]
    assert len(job["blocker_chains"]) == 2000


def test_a_failed_blocker_is_shown_however_many_there_are(cli: Cli, works: Works) -> None:
    crooked = works.inspect.enqueue(1)
    works.drain()
    parts = works.app.enqueue_many([works.build.job(n, steps=0) for n in range(100)])
    waits = works.waiting_for(*parts, crooked, on_blocker_failure="run").id
    shown = cli.at("chain", waits, "--limit", "2").lines
    assert [line[2] for line in shown] == [waits, parts[0].id, crooked.id, "waiting"]


def test_a_long_chain_shows_its_ends_and_the_job_asked_for(cli: Cli, works: Works) -> None:
    chain = works.build.enqueue(1, steps=29).id
    works.drain()
    ids = [job.id for job in works.app.chain(chain)]
    assert len(ids) == 30
    outcome = cli.at("chain", ids[12], "--limit", "5")
    assert [line[3] for line in outcome.lines] == ["0", "11", "12", "14", "27", "28", "29"]
    assert [line[0] for line in outcome.lines] == ["job", "more", "job", "more", "job", "job", "job"]
    shown = drawn(ids[12], "--limit", "5")
    assert shown[2] == "   and 11 more: 11 completed"
    assert shown[3].startswith(f"12 {ids[12]} ◀")
    assert shown[-1].startswith(f"29 {ids[29]}")
    data = cli.at("chain", ids[12], "--limit", "5", "--json").json
    assert (data["length"], len(data["jobs"]), data["left_out"]) == (30, 5, {"completed": 25})
    assert len(cli.at("chain", chain, "--all").lines) == 30
    for place in (0, 1, 29):
        lines = cli.at("chain", ids[place], "--limit", "1").lines
        assert ids[place] in [line[2] for line in lines], "always"


def test_depth_is_bounded_and_a_shared_blocker_unfolded_once(cli: Cli, works: Works) -> None:
    bottom = works.build.enqueue(1, steps=0)
    left = works.waiting_for(bottom)
    for _ in range(30):
        left = works.waiting_for(left, works.waiting_for(left))
    lines = cli.at("chain", left.id).lines
    assert max(int(line[1]) for line in lines) == 4
    assert ["more", "4", "", "2"] in lines
    assert "waits for 2 chains, not shown" in "\n".join(drawn(left.id))
    assert cli.at("chain", left.id, "--depth", "0").lines[1:] == [["more", "1", "", "2"]]
    everything = cli.at("chain", left.id, "--all")
    assert len(everything.lines) < 200, "not every path"
    assert "its blockers are shown" in "\n".join(drawn(left.id, "--all"))

    def repeated(node: dict[str, Any]) -> int:
        return node["repeated"] + sum(repeated(one) for one in node["blocker_chains"])

    assert repeated(cli.at("chain", left.id, "--all", "--json").json["jobs"][0]) > 10


def test_at_most_500_blockers_in_all(cli: Cli, works: Works) -> None:
    def layer(below: list[Any], width: int) -> list[Any]:
        return [works.waiting_for(*below[place : place + width]) for place in range(0, len(below), width)]

    parts = list(works.app.enqueue_many([works.build.job(n, steps=0) for n in range(1_000)]))
    [top] = layer(layer(layer(parts, 10), 10), 10)
    lines = cli.at("chain", top.id).lines
    assert sum(line[0] == "blocker" for line in lines) == 500
    assert sum(int(line[3]) for line in lines if line[0] == "more") == 610
    assert sum(line[0] == "blocker" for line in cli.at("chain", top.id, "--all").lines) == 1_110


def test_a_blocker_that_is_gone_says_so(cli: Cli, works: Works) -> None:
    part = works.build.enqueue(1, steps=0)
    waits = works.waiting_for(part)
    works.drain()
    assert works.app.delete(part) == "deleted"
    assert about(cli.at("chain", waits.id), 0, 2, 4) == [
        ("job", waits.id, "completed"),
        ("blocker", part.id, "gone"),
    ]
    [gone] = cli.at("chain", waits.id, "--json").json["jobs"][0]["blocker_chains"]
    assert (gone["chain"], gone["state"], gone["id"]) == (part.id, None, None)
    assert re.match(rf"  └ {part.id} +gone$", drawn(waits.id)[2])


@on_every_store
def test_what_was_revoked_between_two_runs_did_not_run_to_its_end(cli: Cli, works: Works) -> None:
    again = works.inspect.using(retry=5).enqueue(1)
    works.drain()
    job = works.app.job(again.id)
    assert job is not None
    assert job.state is State.DELAYED
    works.clock.advance(1)
    assert works.app.revoke(again.id) == "revoked"
    [data] = cli.at("chain", again.id, "--json").json["jobs"]
    assert (data["state"], data["ran"]) == ("revoked", None)
    assert data["waited"] >= 1


def test_exit_codes(cli: Cli, works: Works) -> None:
    id = works.build.enqueue(1).id
    assert cli.at("chain", id[:30]).lines[0][2] == id
    nothing = cli.at("chain", NOBODY)
    assert (nothing.code, nothing.out) == (3, "")
    assert f"There is no job {NOBODY}" in nothing.talk
    assert cli.at("chain", "ffffffff", "--json").code == 3
    assert cli.at("chain", "f" * 36).code == 3
    for wrong in (["no id"], [], [id, "--limit", "0"], [id, "--depth", "51"], [id, "--depth", "-1"]):
        assert cli.at("chain", *wrong).code == 2, wrong


def test_a_chain_whose_first_job_is_gone_is_found_all_the_same(cli: Cli, works: Works) -> None:
    chain = works.build.enqueue(1).id
    works.drain()
    with works.app.transaction() as tx:
        tx.execute("delete from onejob_job where chain is null")
    assert [line[3] for line in cli.at("chain", chain).lines] == ["1", "2"]


def test_a_terminal_that_has_no_lines_gets_other_ones() -> None:
    assert Twigs.of("ANSI_X3.4-1968").last == "`-"
    assert Twigs.of("utf-8").last == Twigs.of("UTF8").last == "└ "


def test_what_a_job_says_cannot_act_on_a_terminal(cli: Cli, works: Works) -> None:
    [id] = works.failed(text="\x1b[2J\x9b31m\tnew [bold]")
    for outcome in (cli.at("chain", id), cli.at("chain", id, "--json")):
        assert not re.search(r"[\x00-\x08\x0b-\x1f\x7f-\x9f]", outcome.out)
    with Terminal("chain", id, "--url", URL) as terminal:
        seen = terminal.end()[1]
    assert "\x1b[2J" not in seen
    assert "[bold]" in seen


@on_every_store
def test_jobs_and_job_show_the_chain_and_the_place(cli: Cli, works: Works) -> None:
    chain = works.build.enqueue(1).id
    lone = works.build.enqueue(2, steps=0).id
    works.drain()
    ids = [job.id for job in works.app.chain(chain)]
    found = cli.at("jobs", f"chain:{chain}")
    assert about(found, 0, 6) == [(ids[2], f"{chain}/2"), (ids[1], f"{chain}/1"), (chain, "")]
    assert cli.at("jobs", "chain:order").code == 2
    assert cli.at("jobs", f"chain:{NOBODY}").code == 3
    for place, id in enumerate(ids):
        fields = dict(cli.at("job", id).lines)
        assert (fields["chain"], fields["chain_index"]) == (chain, str(place))
        assert fields["chain_state"] == "completed"
    assert not {"chain", "chain_index", "chain_state", "blockers"} & dict(cli.at("job", lone).lines).keys()
    waits = works.waiting_for(lone, chain).id
    assert dict(cli.at("job", waits).lines)["blockers"] == "2"
    data = cli.at("job", ids[2], "--json").json
    assert (data["chain"], data["chain_index"], data["blockers"]) == (chain, 2, 0)


def test_jobs_at_a_terminal_keep_ids_whole_where_chains_are(works: Works) -> None:
    chain = works.build.enqueue(1).id
    works.drain()
    for columns in (80, 160):
        with Terminal("jobs", "--url", URL, columns=columns) as terminal:
            assert terminal.end()[0] == 0
        assert max(map(len, terminal.text.splitlines())) <= columns
        assert works.last(chain) in terminal.text
    assert f"{chain}/2" in terminal.text


@on_every_store
def test_delete_leaves_alone_what_others_wait_for_unless_told(cli: Cli, works: Works) -> None:
    part = works.build.enqueue(1)
    waits = works.waiting_for(part)
    refused = cli.at("delete", part.id, "--yes")
    assert refused.code == 1
    assert refused.out == (
        "1 left alone (others wait for it, or have yet to read its output; --cascade deletes it)\n"
    )
    assert cli.at("delete", part.id, "--yes", "--json").json == {"awaited": 1}
    assert works.app.count() == 2
    assert cli.at("delete", part.id, "--cascade").code == 2, "it asks"
    done = cli.at("delete", part.id, "--cascade", "--yes")
    assert (done.code, done.out) == (0, "1 deleted\n")
    failed = works.app.job(waits.id)
    assert failed is not None
    assert failed.state is State.FAILED
    assert cli.at("delete", "task:assemble", "--cascade", "--yes", "--json").json == {"deleted": 1}
    assert works.app.count() == 0


@on_every_store
def test_retry_says_that_a_blocker_comes_first(cli: Cli, works: Works) -> None:
    crooked = works.inspect.enqueue(1)
    waits = works.waiting_for(crooked)
    works.drain()
    refused = cli.at("retry", waits.id)
    assert refused.code == 1
    assert refused.out == (
        "1 left alone (a blocker of it did not complete; onejob chain shows which, retry that first)\n"
    )
    assert cli.at("retry", waits.id, "--json").json == {"stranded": 1}
    assert cli.at("retry", crooked.id).out == "1 retried\n"
    assert cli.at("retry", waits.id).out == "1 retried\n"
    assert about(cli.at("chain", waits.id), 2, 4) == [(waits.id, "blocked"), (crooked.id, "waiting")]


@on_every_store
def test_a_chain_is_deleted_whole(cli: Cli, works: Works) -> None:
    chain = works.build.enqueue(1).id
    works.drain()
    assert cli.at("delete", works.last(chain), "--yes").out == "1 deleted\n"
    assert cli.at("chain", chain).code == 3
    assert works.app.count() == 0
