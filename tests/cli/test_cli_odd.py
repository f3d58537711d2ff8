"""What nobody means to do with the command line: odd bytes, full disks, files of others, two wishes at once."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import apsw
import pytest
from commands import PROGRAM, URL, Cli, Outcome, on_every_store, run
from shop import Shop

from onejob.cli.output import fitting

NO_TEXT = os.fsdecode(b"\x9b31m")


@pytest.mark.parametrize(
    "arguments",
    [
        ("jobs", f"key:{NO_TEXT}"),
        ("jobs", f"args.user:{NO_TEXT}"),
        ("why", NO_TEXT),
        ("keys", "--queue", NO_TEXT),
        ("key", "release", NO_TEXT, "--task", "send"),
        ("enqueue", "--app", "shop:app", "send", f"user={NO_TEXT}"),
        (NO_TEXT,),
    ],
)
def test_bytes_that_are_no_text_are_refused(arguments: tuple[str, ...], cli: Cli) -> None:
    told = cli(*arguments)
    assert told.code == 2
    assert "is not UTF-8 text" in told.talk


def redirected(how: str, *arguments: str) -> Outcome:
    """Run a command with its output redirected by a shell."""
    done = subprocess.run(
        ["sh", "-c", f'"$@" {how}', "sh", *PROGRAM, *arguments],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    return Outcome(done.returncode, done.stdout, done.stderr)


@pytest.mark.parametrize(
    "arguments", [("status", "--url", URL), ("--help",), ("jobs", "--json", "--url", URL)]
)
def test_a_full_disk_is_said_in_one_line(arguments: tuple[str, ...], shop: Shop) -> None:
    shop.failed()
    told = redirected(">/dev/full", *arguments)
    assert told == Outcome(1, "", "Error: The output cannot be written: No space left on device.\n")


@pytest.mark.parametrize("how", [">&-", "2>&-", ">&- 2>&-", "<&- >&- 2>&-"])
def test_closed_streams_lead_nowhere(how: str, shop: Shop) -> None:
    shop.failed()
    assert redirected(how, "status", "--url", URL).code == 0
    assert redirected(how, "jobs", "--json", "--url", URL).code == 0


def test_what_an_encoding_lacks_is_escaped(shop: Shop) -> None:
    shop.send.enqueue(user="żółw")
    told = run("keys", "--url", URL, env={**os.environ, "PYTHONIOENCODING": "ascii", "PYTHONUTF8": "0"})
    assert told.code == 0
    assert "w\tdefault\tshop.send" in told.out


@on_every_store
def test_a_key_may_be_given_as_it_is_or_as_it_is_shown(cli: Cli, shop: Shop) -> None:
    shop.send.enqueue(user="a\x1b[31mb")
    for given in ("a\x1b[31mb", "a\\x1b[31mb"):
        assert 'holds key "a\\x1b[31mb"' in cli.at("why", given).out
    assert cli.at("key", "release", "a\x1b[31mb", "--task", "send").code == 0


def test_wide_characters_have_the_room_they_take() -> None:
    assert fitting(["key"], [["日本語"]], 80) == {0: 6}


def test_json_that_is_too_deep_is_text(folder: Path, cli: Cli) -> None:
    (folder / "deep.py").write_text(
        "from onejob import App\napp = App()\n@app.task(name='t')\ndef t(value: list) -> None: ...\n"
    )
    told = cli("enqueue", "--app", "deep:app", "t", "value=" + "[" * 100_000)
    assert told.code == 2
    assert "args.value must be" in told.talk


@pytest.mark.parametrize("target", ["", ":", ":app", ".shop:app", "..:app"])
def test_a_target_without_a_module_is_named(target: str, cli: Cli) -> None:
    told = cli("status", "--app", target)
    assert told.code == 2
    assert "names no module" in told.talk
    assert "Traceback" not in told.talk


@pytest.mark.parametrize("content", [b"", None])
def test_a_file_of_somebody_elses_is_only_looked_at(content: bytes | None, folder: Path, cli: Cli) -> None:
    file = folder / "jobs.db"
    if content is None:
        connection = apsw.Connection(str(file))
        connection.execute("create table theirs (a)")
        connection.close()
        content = file.read_bytes()
    else:
        file.write_bytes(content)
    for command in (
        ("status",),
        ("jobs",),
        ("keys",),
        ("dead",),
        ("retry", "state:failed", "--yes"),
        ("top",),
    ):
        told = cli.at(*command)
        assert told.code == 1
        assert "There is no store" in told.talk
    assert file.read_bytes() == content


@pytest.mark.parametrize("name", ["class.py", "json.py", "onejob.py", "pass.py"])
def test_init_writes_no_file_that_cannot_be_imported_or_hides_another(
    name: str, folder: Path, cli: Cli
) -> None:
    assert cli("init", name).code == 2
    assert list(folder.iterdir()) == []


@pytest.mark.parametrize(
    "arguments",
    [
        ("top", "--every", "nan", "--url", URL),
        ("dev", "shop:app", "--every", "nan"),
        ("dev", "shop:app", "--drain", "nan"),
        ("dev", "shop:app", "--drain", "inf"),
        ("dev", "shop:app", "--concurrency", "0"),
    ],
)
def test_numbers_that_are_none_are_refused(arguments: tuple[str, ...], cli: Cli) -> None:
    assert cli(*arguments).code == 2


@on_every_store
def test_a_task_with_the_longest_name_is_found(cli: Cli, shop: Shop) -> None:
    name = "t" * 100
    shop.app.task(name=name)(lambda: None).enqueue()
    assert cli.at("jobs", f"task:{name}").code == 0


@on_every_store
def test_what_is_not_there_is_not_counted_as_more(cli: Cli, shop: Shop) -> None:
    shop.failed()
    told = cli.at("delete", "ffffffff-ffff-ffff-ffff-ffffffffffff", "--yes")
    assert (told.code, told.out) == (3, "1 not found\n")
    assert "more" not in told.talk


def test_dead_letters_are_not_retried_and_deleted_at_once(cli: Cli, shop: Shop) -> None:
    shop.failed()
    told = cli.at("dead", "--retry", "--delete", "--yes")
    assert told.code == 2
    assert "exclude each other" in told.talk


def graveyard(shop: Shop) -> None:
    """Dead letters, more than a list shows, of which the oldest died of something else."""
    bury = shop.fail.using(dead_letter="mail-dead")
    bury.enqueue(order=0, text="lost")
    shop.app.enqueue_many([bury.job(order=n) for n in range(60)])
    shop.drain()


@on_every_store
def test_dead_letters_are_found_by_error_wherever_they_stand(cli: Cli, shop: Shop) -> None:
    graveyard(shop)
    assert len(cli.at("dead", "mail", "--error", "LOST").lines) == 1
    assert len(cli.at("dead", "--error", "no such", "--start", "55").lines) == 5
    assert cli.at("dead", "other", "--error", "lost").code == 3


@on_every_store
def test_waiting_dead_letters_are_retried_by_their_queue(cli: Cli, shop: Shop) -> None:
    graveyard(shop)
    told = cli.at("retry", "queue:mail-dead", "error:lost", "--yes", "--json")
    assert told.json == {"retried": 1}
    assert cli.at("retry", "queue:mail-dead", "--yes").out == "60 retried\n"
    assert cli.at("dead").code == 3


def test_dead_letters_that_wait_are_no_illness(cli: Cli, shop: Shop) -> None:
    graveyard(shop)
    assert cli.at("doctor").code == 0


def test_what_may_be_cut_is_cut_before_an_id_is() -> None:
    headings = ["id", "state", "queue", "task", "error"]
    row = ["0" * 36, "completed", "default", "shop.send_welcome_mail", "ValueError: of some length"]
    widths = fitting(headings, [row], 80)
    assert (widths[0], widths[1]) == (36, 9)
    assert sum(widths.values()) + 2 * len(widths) + 1 <= 80
    assert fitting(headings, [row], 50)[0] == 36
