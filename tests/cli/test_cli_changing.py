"""The commands that change jobs: retry, delete, dead, prune, key release; they show, ask, and report."""

from __future__ import annotations

import time
from collections.abc import Callable

import pytest
from commands import URL, Cli, Terminal
from shop import Shop

from onejob import Queue, current_job
from onejob.bulk import BATCH
from onejob.testing import FakeClock

at_a_terminal = pytest.mark.parametrize("store_url", ["sqlite"], indirect=True)
"""For what is seen there, whichever store it is."""


@pytest.fixture
def url(store_url: str) -> str:
    return URL if store_url.startswith("sqlite:") else store_url


def states(shop: Shop) -> dict[str, int]:
    return {f"{queue}/{state}": n for queue, found in shop.app.counts().items() for state, n in found.items()}


def test_retry_by_filter_shows_asks_and_reports(cli: Cli, shop: Shop) -> None:
    ids = shop.failed(7)
    refused = cli.at("retry", "state:failed")
    assert (refused.code, refused.out) == (2, "")
    assert refused.talk.startswith("Retry 7 jobs:\n")
    assert refused.talk.count("ValueError: no such order") == 5
    assert "and 2 more" in refused.talk
    assert "add --yes" in refused.talk
    assert states(shop) == {"mail/failed": 7}
    done = cli.at("retry", "state:failed", "args.order:0,1,2", "--yes")
    assert (done.code, done.out) == (0, "3 retried\n")
    assert states(shop) == {"mail/failed": 4, "mail/waiting": 3}
    assert cli.at("retry", f"id:{ids[6]}", "--yes", "--json").json == {"retried": 1}


def test_retry_by_id_does_not_ask(cli: Cli, shop: Shop) -> None:
    first, second, third = shop.failed(3)
    assert cli.at("retry", first, second).out == "2 retried\n"
    again = cli.at("retry", first)
    assert again.code == 1
    assert "left alone (running or queued)" in again.out
    assert cli.at("retry", "ffffffff").code == 3
    assert cli.at("retry", "ffffffff-ffff-7fff-bfff-ffffffffffff").code == 3
    assert cli.at("retry", first[:8]).code == 2
    assert cli.at("retry", "state:failed", third).code == 2


def test_retry_says_when_others_hold_the_key(cli: Cli, shop: Shop) -> None:
    receipt = shop.send.enqueue("u1")
    shop.app.revoke(receipt)
    shop.send.enqueue("u1")
    kept = cli.at("retry", receipt.id)
    assert kept.code == 4
    assert "another job holds the key" in kept.out
    assert cli.at("retry", receipt.id, "--force").code == 0


def test_nothing_to_change_is_exit_code_3(cli: Cli, shop: Shop) -> None:
    shop.send.enqueue("u1")
    for arguments in (["retry", "task:send"], ["delete", "state:failed"]):
        nothing = cli.at(*arguments, "--yes")
        assert (nothing.code, nothing.out) == (3, "")
        assert "No job matches" in nothing.talk


def test_delete_asks_even_for_ids(cli: Cli, shop: Shop) -> None:
    [id] = shop.failed()
    assert cli.at("delete", id).code == 2
    assert cli.at("delete", id, "--yes").out == "1 deleted\n"
    assert cli.at("delete", id, "--yes").code == 3
    shop.failed(3)
    assert cli.at("delete", "state:failed", "--yes", "--json").json == {"deleted": 3}
    assert cli.at("delete", "--yes").code == 2


@at_a_terminal
@pytest.mark.parametrize(("answer", "code", "left"), [("y\n", 0, 0), ("n\n", 1, 2), ("\n", 1, 2)])
def test_at_a_terminal_it_asks(shop: Shop, answer: str, code: int, left: int) -> None:
    shop.failed(2)
    with Terminal("delete", "state:failed", "--url", URL) as terminal:
        terminal.read_until("Go on? [y/N]:")
        terminal.type(answer)
        ended, seen = terminal.end()
    assert ended == code
    assert ("2 deleted" in seen) == (code == 0)
    assert ("Nothing was changed." in seen) == (code == 1)
    assert shop.app.count() == left


@at_a_terminal
def test_long_work_shows_a_progress_bar_at_a_terminal(shop: Shop) -> None:
    shop.app.enqueue_many([shop.fail.job(order=n) for n in range(2 * BATCH)])
    with Terminal("delete", "state:live", "--yes", "--url", URL) as terminal:
        code, seen = terminal.end()
    assert code == 0
    assert "%" in seen
    assert f"{2 * BATCH} deleted" in seen


@pytest.fixture
def graveyard(make_shop: Callable[..., Shop]) -> Shop:
    """A shop with three dead letters, of two errors."""
    shop = make_shop(queues={"mail": Queue(dead_letter="mail-dead")})
    shop.failed(2)
    shop.failed(1, text="timed out")
    return shop


def test_dead_letters_are_listed_from_their_queue(cli: Cli, graveyard: Shop) -> None:
    outcome = cli.at("dead", "mail")
    assert outcome.code == 0
    assert [line[2:5] for line in outcome.lines] == [["mail", "mail-dead", "shop.fail"]] * 3
    assert outcome.lines[0][-1] == "ValueError: timed out 0"
    assert len(cli.at("dead").lines) == 3
    assert len(cli.at("dead", "mail", "--start", "1", "--stop", "2").lines) == 1
    assert len(cli.at("dead", "--error", "TIMED").lines) == 1
    data = cli.at("dead", "--json").json_lines
    assert {one["origin_queue"] for one in data} == {"mail"}
    assert data[0]["origin"] == outcome.lines[0][1]
    assert cli.at("dead", "other").code == 3


def test_dead_letters_are_grouped_by_error(cli: Cli, make_shop: Callable[..., Shop]) -> None:
    shop = make_shop(queues={"mail": Queue(dead_letter="mail-dead")})
    for text in ("lost", "lost", "late"):
        shop.failed(1, text=text)
    outcome = cli.at("dead", "mail", "--by-error")
    assert [line[:2] for line in outcome.lines] == [["2", "ValueError: lost 0"], ["1", "ValueError: late 0"]]
    groups = cli.at("dead", "--by-error", "--json").json_lines
    assert [group["count"] for group in groups] == [2, 1]
    assert cli.at("dead", "other", "--by-error").code == 3
    with Terminal("dead", "--by-error", "--url", cli.url) as terminal:
        assert "ValueError: lost 0" in terminal.end()[1]


def test_dead_letters_are_retried_and_deleted_together(cli: Cli, graveyard: Shop) -> None:
    assert cli.at("dead", "mail", "--retry").code == 2
    retried = cli.at("dead", "mail", "--error", "timed out", "--retry", "--yes")
    assert (retried.code, retried.out) == (0, "1 retried\n")
    assert "Retry 1 dead letter:" in retried.talk
    assert states(graveyard) == {"mail/failed": 2, "mail/waiting": 1, "mail-dead/waiting": 2}
    deleted = cli.at("dead", "--delete", "--yes", "--json")
    assert deleted.json == {"deleted": 2}
    assert states(graveyard) == {"mail/failed": 2, "mail/waiting": 1}
    assert cli.at("dead", "--delete", "--yes").code == 3
    assert cli.at("dead", "--delete", "--by-error").code == 2


def test_prune_removes_what_has_been_kept_long_enough(cli: Cli, make_shop: Callable[..., Shop]) -> None:
    clock = FakeClock(int(time.time() * 1000) - 3 * 86_400_000)
    shop = make_shop(clock=clock)
    shop.failed(2)
    shop.send.enqueue("u1")
    shop.drain()
    assert cli.at("prune").code == 2
    refused = cli.at("prune", "--failed", "2d")
    assert refused.code == 2
    assert refused.talk.startswith("Remove 3 jobs:")
    assert shop.app.count() == 3
    done = cli.at("prune", "--yes", "--json")
    assert done.json["jobs"] == 1
    assert states(shop) == {"mail/failed": 2}
    again = cli.at("prune", "--failed", "2d", "--yes")
    assert again.code == 0
    assert again.out.startswith("removed 2 jobs, ")
    assert cli.at("prune", "--yes").code == 3
    assert cli.at("prune", "--failed", "soon").code == 2


def test_prune_accounts_for_jobs_that_stay_or_go_with_their_chains(
    cli: Cli, make_shop: Callable[..., Shop]
) -> None:
    shop = make_shop(clock=FakeClock(int(time.time() * 1000) - 3_600_000))

    @shop.app.task(name="shop.begin")
    def begin() -> None:
        current_job().continue_with(end)

    @shop.app.task(name="shop.end")
    def end() -> None:
        raise ValueError("boom")

    begin.enqueue()
    shop.send.enqueue("u1")
    shop.drain()
    assert states(shop) == {"default/completed": 2, "default/failed": 1}
    stayed = cli.at("prune", "--completed", "0", "--yes")
    assert stayed.talk.startswith("Remove 2 jobs:")
    assert stayed.out.startswith("removed 1 job, ")
    assert (
        "1 job of the 2 stayed: of chains that go on or ended otherwise, or that others wait for."
        in stayed.talk
    )
    whole = cli.at("prune", "--failed", "0", "--completed", "2h", "--yes")
    assert whole.talk.startswith("Remove 1 job:")
    assert whole.out.startswith("removed 2 jobs, ")
    assert whole.talk.endswith("1 job more went, of the same chains.\n")


def test_a_released_key_lets_the_next_call_through(cli: Cli, shop: Shop) -> None:
    receipt = shop.send.enqueue("u1")
    released = cli.at("key", "release", "u1", "--task", "send")
    assert (released.code, released.out) == (0, f'released: key "u1" was held by {receipt.id}\n')
    assert not shop.send.enqueue("u1").deduplicated
    data = cli.at("key", "release", "u1", "--task", "shop.send", "--json").json
    assert data["task"] == "shop.send"
    free = cli.at("key", "release", "u1", "--task", "send")
    assert (free.code, free.out) == (3, "")
    assert cli.at("key", "release", "u1").code == 2


def test_a_key_in_two_queues_must_be_told_apart(cli: Cli, shop: Shop) -> None:
    shop.send.enqueue("u1")
    shop.send.using(queue="mail").enqueue("u1")
    ambiguous = cli.at("key", "release", "u1", "--task", "send")
    assert ambiguous.code == 2
    assert "Say --queue" in ambiguous.talk
    assert cli.at("key", "release", "u1", "--task", "send", "--queue", "mail").code == 0
    assert len(cli.at("keys").lines) == 1
