"""The commands one reads: status, jobs, job, why, keys; as text, as JSON, and by their exit codes."""

from __future__ import annotations

import asyncio
import re
import time
from collections.abc import Callable

import pytest
from commands import URL, Cli, Terminal
from shop import Shop

from onejob import State
from onejob.core.job import NewJob, WorkerId
from onejob.ids import new_id
from onejob.store import Beat
from onejob.testing import FakeClock


@pytest.fixture
def url(store_url: str) -> str:
    return URL if store_url.startswith("sqlite:") else store_url


ISO = re.compile(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z")


def test_status_counts_by_queue_and_state(cli: Cli, shop: Shop) -> None:
    shop.failed(2)
    shop.send.enqueue("u1")
    beat = Beat(WorkerId("w1"), 30_000, queues=("mail", "default"), host="here", pid=7, concurrency=4)
    asyncio.run(shop.app.store.beat(beat))
    outcome = cli.at("status")
    assert outcome.code == 0
    assert ["jobs", "mail", "failed", "2"] in outcome.lines
    assert ["jobs", "default", "waiting", "1"] in outcome.lines
    [wait] = [line for line in outcome.lines if line[0] == "longest_wait"]
    assert wait[1] == "default"
    assert float(wait[2]) >= 0
    [worker] = [line for line in outcome.lines if line[0] == "worker"]
    assert worker[1:7] == ["w1", "here", "7", "mail,default", "0", "4"]
    assert ISO.fullmatch(worker[7])
    assert worker[8] == "alive"


def test_status_as_json_is_one_document(cli: Cli, shop: Shop) -> None:
    shop.send.enqueue("u1")
    data = cli.at("status", "--json").json
    assert data["url"] == cli.url
    assert data["queues"]["default"]["counts"] == {str(state): int(state == "waiting") for state in State}
    assert data["queues"]["default"]["longest_wait"] >= 0
    assert data["workers"] == []


def test_status_of_an_empty_store_is_empty(cli: Cli) -> None:
    assert cli.at("migrate").code == 0
    assert cli.at("status").code == 0
    assert cli.at("status", "--json").json["queues"] == {}


def test_status_at_a_terminal_is_a_table(shop: Shop, url: str) -> None:
    shop.failed()
    shop.send.enqueue("u1")
    with Terminal("status", "--url", url) as terminal:
        code, seen = terminal.end()
    assert code == 0
    assert re.search(r"queue +waiting +failed +longest wait", terminal.text)
    assert "blocked" not in seen, "columns without a number are left out"


def test_jobs_are_listed_by_the_filter(cli: Cli, shop: Shop) -> None:
    first, second = shop.failed(2)
    shop.send.enqueue("u1")
    outcome = cli.at("jobs", "state:failed task:fail")
    assert outcome.code == 0
    assert [line[0] for line in outcome.lines] == [second, first]
    id, state, queue, task, key, lane, chain, attempt, accepted, error = outcome.lines[0]
    assert (id, state, queue, task, key, lane, chain) == (second, "failed", "mail", "shop.fail", "", "", "")
    assert attempt == "1"
    assert ISO.fullmatch(accepted)
    assert error == "ValueError: no such order 1"
    assert [line[0] for line in cli.at("jobs", "state:failed", "args.order:0").lines] == [first]
    assert cli.at("jobs", "--count", "state:failed").out == "2\n"
    assert cli.at("jobs", "--count", "state:failed", "--json").json == {"count": 2}


def test_jobs_as_json_are_one_object_per_line(cli: Cli, shop: Shop) -> None:
    [id] = shop.failed()
    shop.gather.enqueue([1])
    shop.gather.enqueue([2, 3])
    gathered, failed = cli.at("jobs", "--json").json_lines
    assert failed["id"] == id
    assert failed["args"] == {"order": 0}
    assert failed["state"] == "failed"
    assert failed["error"].startswith("ValueError: no such order 0")
    assert ISO.fullmatch(failed["ended"])
    assert gathered["args"] == [{"items": [1]}, {"items": [2, 3]}]


def test_jobs_come_in_pages(cli: Cli, shop: Shop) -> None:
    ids = shop.failed(3)
    first = cli.at("jobs", "--limit", "2")
    assert [line[0] for line in first.lines] == [ids[2], ids[1]]
    cursor = re.search(r"--cursor (\d+)", first.talk)
    assert cursor is not None
    second = cli.at("jobs", "--limit", "2", "--cursor", cursor[1])
    assert [line[0] for line in second.lines] == [ids[0]]
    assert second.talk == ""
    assert cli.at("jobs", "--cursor", "x").code == 2


def test_no_match_is_exit_code_3_and_a_wrong_filter_2(cli: Cli) -> None:
    assert cli.at("migrate").code == 0
    nothing = cli.at("jobs", "state:failed")
    assert (nothing.code, nothing.out, nothing.talk) == (3, "", "No job matches.\n")
    wrong = cli.at("jobs", "stat:failed")
    assert (wrong.code, wrong.out) == (2, "")
    assert "did you mean 'state'?" in wrong.talk


def test_what_a_job_says_cannot_act_on_a_terminal(cli: Cli, shop: Shop, url: str) -> None:
    [id] = shop.failed(text="\x1b[2J\x9b31m\tnew\nline [bold]")
    for outcome in (cli.at("jobs"), cli.at("job", id), cli.at("jobs", "--json"), cli.at("job", id, "--json")):
        assert outcome.code == 0
        assert not re.search(r"[\x00-\x08\x0b-\x1f\x7f-\x9f]", outcome.out)
    assert len(cli.at("jobs").lines[0]) == 10
    with Terminal("job", id, "--url", url) as terminal:
        seen = terminal.end()[1]
    assert "\x1b[2J" not in seen
    assert "[bold]" in seen


def test_job_tells_everything(cli: Cli, shop: Shop) -> None:
    receipt = shop.send.enqueue("u1", count=3)
    shop.drain()
    outcome = cli.at("job", receipt.id)
    assert outcome.code == 0
    fields = dict(line for line in outcome.lines)
    assert fields["id"] == receipt.id
    assert fields["args"] == '{"user":"u1","count":3}'
    assert fields["key"] == "u1"
    assert fields["state"] == "completed"
    assert fields["result"] == '"sent 3 to u1"'
    data = cli.at("job", receipt.id, "--json").json
    assert data["args"] == {"user": "u1", "count": 3}
    assert data["result"] == "sent 3 to u1"
    assert data["key"] == "u1"
    assert data["error"] is None


def test_job_at_a_terminal_lays_the_payload_out(shop: Shop, url: str) -> None:
    receipt = shop.send.enqueue("a user with quite a long name, so that one line would not do", count=3)
    with Terminal("job", receipt.id, "--url", url) as terminal:
        code, seen = terminal.end()
    assert code == 0
    assert '\r\n      "count": 3\r\n' in seen


def test_a_payload_that_cannot_be_read_is_said_to_be_so(cli: Cli, shop: Shop) -> None:
    job = NewJob(new_id(), "default", shop.send.name, b"\x80\x04pickle")
    asyncio.run(shop.app.store.enqueue([job]))
    assert dict(cli.at("job", job.id).lines)["args"] == "(the payload cannot be read)"
    assert cli.at("job", job.id, "--json").json["args"] is None


def test_a_job_is_found_by_the_beginning_of_its_id(cli: Cli, shop: Shop) -> None:
    first, second = shop.failed(2)
    shared = len([1 for a, b in zip(first, second, strict=True) if a == b]) - 1
    assert cli.at("job", first.upper(), "--json").json["id"] == first
    ambiguous = cli.at("job", first[:8])
    assert ambiguous.code == 2
    assert "Several ids begin with" in ambiguous.talk
    assert first in ambiguous.talk
    assert cli.at("job", first[: shared + 6], "--json").json["id"] == first
    assert cli.at("job", "ffffff").code == 3
    assert cli.at("job", "order-9").code == 2
    assert cli.at("job", "0198f").code == 2


def test_why_explains_a_job(cli: Cli, shop: Shop) -> None:
    receipt = shop.send.enqueue("u1")
    outcome = cli.at("why", receipt.id)
    assert outcome.code == 0
    assert "no worker serves queue 'default'" in outcome.out
    assert 'It holds key "u1"' in outcome.out
    assert cli.at("why", receipt.id, "--json").json["state"] == "waiting"
    assert cli.at("why", "ffffffff").code == 3


def test_why_explains_a_key(cli: Cli, shop: Shop) -> None:
    receipt = shop.send.enqueue("u1")
    shop.send.enqueue("u1", count=2)
    shop.app.close()
    outcome = cli.at("why", "u1")
    assert outcome.code == 0
    assert "1 duplicate absorbed, 1 of them with other arguments." in outcome.out
    assert "would be kept" in outcome.out
    [data] = cli.at("why", "u1", "--json").json_lines
    assert (data["holder"], data["absorbed"], data["next_outcome"]) == (receipt.id, 1, "kept")
    free = cli.at("why", "u2")
    assert (free.code, free.out) == (3, "")
    assert "it is free" in free.talk


def test_why_explains_a_key_whose_job_is_pruned(cli: Cli, shop: Shop) -> None:
    receipt = shop.send.enqueue("u1")
    shop.drain()
    assert shop.app.delete(receipt) == "deleted"
    outcome = cli.at("why", "u1")
    assert outcome.code == 0
    assert f"Job {receipt.id} holds key" in outcome.out
    assert "remembered until it is released" in outcome.out
    assert cli.at("why", "u1", "--json").json["holder_state"] == "completed"


def test_a_key_of_several_tasks_is_told_one_by_one(cli: Cli, shop: Shop) -> None:
    other = shop.app.task(name="shop.other", unique=shop.send.planner.options.unique)(_other)
    shop.send.enqueue("u1")
    other.enqueue("u1")
    assert len(cli.at("why", "u1", "--json").json_lines) == 2
    assert len(cli.at("why", "u1", "--json", "--task", "other").json_lines) == 1
    assert cli.at("why", "u1", "--queue", "mail").code == 3


def _other(user: str) -> None: ...


def test_keys_are_listed(cli: Cli, shop: Shop, url: str) -> None:
    assert cli.at("migrate").code == 0
    assert cli.at("keys").code == 3
    receipt = shop.send.enqueue("u1")
    shop.drain()
    outcome = cli.at("keys")
    assert outcome.code == 0
    key, queue, task, holder, state, taken, absorbed, differing, ended = outcome.lines[0]
    assert (key, queue, task, holder, state) == ("u1", "default", "shop.send", receipt.id, "completed")
    assert ISO.fullmatch(taken)
    assert ISO.fullmatch(ended)
    assert (absorbed, differing) == ("0", "0")
    [data] = cli.at("keys", "--json").json_lines
    assert data["holds"] is True
    assert data["holder"] == receipt.id
    assert cli.at("keys", "--queue", "mail").code == 3
    with Terminal("keys", "--url", url) as terminal:
        assert terminal.end()[0] == 0
        assert re.search(r"key +queue +task", terminal.text)


def test_ages_are_the_stores(cli: Cli, make_shop: Callable[..., Shop]) -> None:
    clock = FakeClock(int(time.time() * 1000) - 7_200_000)
    old = make_shop(clock=clock).send.enqueue("u1")
    assert [line[0] for line in cli.at("jobs", "older:1h").lines] == [old.id]
    assert cli.at("jobs", "newer:1h").code == 3
    assert cli.at("status", "--json").json["queues"]["default"]["longest_wait"] == pytest.approx(
        7200, abs=120
    )


@pytest.mark.parametrize("columns", [80, 200])
def test_a_list_fits_the_terminal_and_ids_stay_whole(shop: Shop, columns: int, url: str) -> None:
    ids = shop.failed(2, text="a rather long story of what went wrong")
    shop.send.enqueue("a user with a long name")
    with Terminal("jobs", "--url", url, columns=columns) as terminal:
        assert terminal.end()[0] == 0
    lines = terminal.text.splitlines()
    assert max(len(line) for line in lines) <= columns
    assert sum(f" {id}  failed " in line for line in lines for id in ids) == 2
    assert ("queue" in terminal.text) == (columns == 200)
