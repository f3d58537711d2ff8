"""The intake on the command line: status, why, run with its progress bar, and allow."""

from __future__ import annotations

import asyncio
import datetime as dt
import json
import socket
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import sqlalchemy
from commands import Cli, Outcome, Terminal, run

from onejob import App
from onejob.core.job import WorkerId
from onejob.store import Beat
from onejob.testing import drain

MODULE = '''
"""An app with two intakes: one by day, one not."""

from onejob import App, Table

app = App("sqlite:///jobs.db")


@app.task(name="send_sms")
def send_sms(phone: str, message: str) -> None: ...


sms = app.intake("sms", Table("sms_schedules", due="scheduled_time"), send_sms, look_ahead=3600, per_fetch=500)
daily = app.intake("daily", Table("mail_{day:%Y%m%d}", due="at", flag="done"), send_sms.using(queue="mail"))
'''
YESTERDAYS = f"mail_{dt.datetime.now(dt.UTC) - dt.timedelta(days=1):%Y%m%d}"
TABLES = (
    "create table sms_schedules (id integer primary key, phone text, message text, scheduled_time text, scheduled boolean)",
    f"create table {YESTERDAYS} (id text primary key, phone text, message text, at text, done boolean)",
)


class Post:
    """The app on the command line, and its tables."""

    def __init__(self, cli: Cli, app: App) -> None:
        self._cli = cli
        self.app = app

    def __call__(self, *arguments: str) -> Outcome:
        return self._cli("intake", *arguments, "--app", "post_office:app")

    def sql(self, *statements: str) -> list[tuple[object, ...]]:
        """Run statements; the rows of the last."""
        rows: list[tuple[object, ...]] = []
        with self.app.transaction() as tx:
            for statement in statements:
                rows = tx.execute(statement)
        return rows

    def put(self, first: int, last: int, due: str = "2025-08-06T20:30:00", phone: str = "'+' || n") -> None:
        self.sql(
            f"with recursive numbers (n) as (select {first} union all select n + 1 from numbers where n < {last}) "
            "insert into sms_schedules (id, phone, message, scheduled_time) "
            f"select n, {phone}, 'm' || n, '{due}' from numbers"
        )


@pytest.fixture
def post(cli: Cli, folder: Path, own_modules: None, monkeypatch: pytest.MonkeyPatch) -> Iterator[Post]:
    monkeypatch.setattr(sys, "path", list(sys.path))
    (folder / "post_office.py").write_text(MODULE)
    app = App("sqlite:///jobs.db")
    app.task(name="send_sms")(_send)
    made = Post(cli, app)
    made.sql(*TABLES)
    yield made
    app.close()


def _send(phone: str, message: str) -> None: ...


def test_doctor_misses_the_table_of_an_intake(post: Post, cli: Cli) -> None:
    asyncio.run(post.app.store.beat(Beat(WorkerId("w"), 30_000, queues=("default", "mail"))))
    assert cli("doctor", "--app", "post_office:app").code == 0
    post.sql("alter table sms_schedules rename to sms_plans")
    found = cli("doctor", "--app", "post_office:app")
    [what] = [line[2] for line in found.lines if line[:2] == ["error", "intake"]]
    assert found.code == 1
    assert "Intake 'sms' takes no rows in: There is no table 'sms_schedules'" in what
    assert "sms_plans" in what
    assert "Intake 'daily'" not in found.out


def test_the_status_counts_rows_by_table_and_suggests_an_index(post: Post) -> None:
    post.put(1, 3)
    post.put(4, 5, due="2999-01-01T00:00:00")
    post.sql(
        "update sms_schedules set scheduled = true where id = 3",
        f"insert into {YESTERDAYS} (id) values ('a')",
    )
    told = post("status")
    assert told.code == 0
    assert told.lines == [
        ["sms", "sms_schedules", "5", "1", "4", "2"],
        ["daily", YESTERDAYS, "1", "0", "1", "0"],
    ]
    assert "create index" in told.talk.lower()
    assert told.talk.count(";\n") == 2, "ready to be pasted"
    assert post().lines == told.lines, "which is what it does alone"
    assert post("status", "sms").lines == told.lines[:1]
    [data] = post("status", "sms", "--json").json_lines
    assert (data["name"], data["total"], data["scheduled"], data["pending"], data["due"]) == (
        "sms",
        5,
        1,
        4,
        2,
    )
    [table] = data["tables"]
    assert table["name"] == "sms_schedules"
    assert table["index"].lower().startswith("create index")
    post.sql(table["index"])
    assert post("status", "sms").talk == ""


def test_the_status_is_a_table_at_a_terminal(post: Post) -> None:
    post.put(1, 3)
    with Terminal("intake", "status", "--app", "post_office:app", columns=100) as terminal:
        assert terminal.end()[0] == 0
    assert "pending" in terminal.text
    assert "sms_schedules" in terminal.text


def test_why_explains_a_row(post: Post) -> None:
    post.put(1, 1)
    told = post("why", "sms", "1")
    assert told.code == 0
    assert "within" in told.out
    assert post("why", "sms", "1", "--json").json["reason"] == "pending"
    missing = post("why", "sms", "2")
    assert missing.code == 3
    assert "2" in missing.talk
    assert post("run", "sms").code == 0
    told = post("why", "sms", "1", "--json")
    assert (told.code, told.json["reason"], told.json["job"]) == (0, "flagged", post.app.jobs().jobs[0].id)


def test_why_answers_for_every_table_that_has_the_row(post: Post) -> None:
    today = f"mail_{dt.datetime.now(dt.UTC):%Y%m%d}"
    post.sql(TABLES[1].replace(YESTERDAYS, today))
    for table in (YESTERDAYS, today):
        post.sql(
            f"insert into {table} (id, phone, message, at) values ('7', '+1', 'm', '2025-08-06 20:30:00')"
        )
    told = post("why", "daily", "7")
    assert told.code == 0
    assert [
        f"Row 7 of {table} is due" in line
        for table, line in zip((YESTERDAYS, today), told.out.splitlines(), strict=True)
    ] == [True, True]
    assert [data["table"] for data in post("why", "daily", "7", "--json").json_lines] == [YESTERDAYS, today]
    assert post("why", "daily", "7", "--table", today, "--json").json["table"] == today


def test_options_before_a_subcommand_are_not_forgotten(cli: Cli, post: Post) -> None:
    told = cli("intake", "--app", "post_office:app", "status")
    assert (told.code, told.out) == (2, "")
    assert "as in onejob intake status --app MODULE:APP." in told.talk


def test_ids_may_be_texts(post: Post) -> None:
    post.sql(
        f"insert into {YESTERDAYS} (id, phone, message, at) values ('a-1', '+1', 'm', '2025-08-06 20:30:00')"
    )
    post.sql(
        f"insert into {YESTERDAYS} (id, phone, message, at) values ('0017', '+1', 'm', '2025-08-06 20:30:00')"
    )
    assert post("why", "daily", "a-1", "--json").json["reason"] == "pending"
    assert post("why", "daily", "0017", "--json").json["reason"] == "pending"
    assert post("why", "daily", "17").code == 3


def test_run_takes_in_what_is_due(post: Post) -> None:
    post.put(1, 3)
    post.put(4, 4, due="2999-01-01T00:00:00")
    told = post("run")
    assert told.code == 0
    assert told.lines[0][:4] == ["sms", "sms_schedules", "3", "0"]
    assert post.app.count() == 3
    again = post("run", "sms", "--json")
    assert again.code == 0
    [data] = again.json_lines
    assert (data["name"], data["taken"], data["kept"], data["failed"]) == ("sms", 0, 0, 0)


def test_run_says_which_rows_are_bad(post: Post) -> None:
    post.put(1, 2)
    post.put(3, 3, phone="null")
    told = post("run", "sms")
    assert told.code == 1
    assert post.app.count() == 2
    assert "onejob intake why sms" in told.talk


def test_a_bad_row_is_named_once_and_of_many_the_first_twenty(post: Post) -> None:
    post.put(1, 30, phone="null")
    told = run("intake", "run", "sms", "--app", "post_office:app")  # a process, as nobody listens to its log
    assert told.code == 1
    named = [line for line in told.talk.splitlines() if "cannot become a job" in line]
    assert len(named) == 20
    assert named[0].startswith("Row 1 of sms_schedules cannot become a job:")
    assert "and 10 more" in told.talk


def test_a_large_intake_shows_its_progress_at_a_terminal_only(post: Post) -> None:
    post.put(1, 3000)
    with Terminal("intake", "run", "sms", "--app", "post_office:app", columns=100) as terminal:
        code, _ = terminal.end()
    assert code == 0
    assert "%" in terminal.text
    assert "3000" in terminal.text.replace(",", "")
    post.put(3001, 6000)
    piped = post("run", "sms")
    assert "%" not in piped.talk + piped.out
    assert post.app.count() == 6000


def test_allow_lets_a_row_be_scheduled_again(post: Post) -> None:
    post.put(1, 1)
    post("run", "sms")
    kept = post("allow", "sms", "1")
    assert kept.code == 4
    assert "has not ended" in kept.out + kept.talk
    drain(post.app)
    told = post("allow", "sms", "1", "--json")
    assert (told.code, told.json["outcome"]) == (0, "allowed")
    assert post.sql("select scheduled from sms_schedules") == [(0,)]
    post("run", "sms")
    assert post("allow", "sms", "1", "--force").code == 0
    assert post("allow", "sms", "9").code == 3
    assert post.app.count() == 2


@pytest.mark.parametrize(
    "command", [("status", "smss"), ("run", "smss"), ("why", "smss", "1"), ("allow", "smss", "1")]
)
def test_an_unknown_intake_names_a_near_one(post: Post, command: tuple[str, ...]) -> None:
    told = post(*command)
    assert told.code == 2
    assert "'smss'" in told.talk
    assert "did you mean 'sms'" in told.talk


def test_a_table_that_is_not_there_is_a_wrong_usage(post: Post) -> None:
    post.sql("alter table sms_schedules rename to sms_schedulez")
    told = post("status", "sms")
    assert told.code == 2
    assert "'sms_schedules'" in told.talk
    assert "did you mean 'sms_schedulez'" in told.talk


def test_the_status_of_one_that_is_wrong_does_not_hide_the_others(post: Post) -> None:
    post.sql("alter table sms_schedules rename to sms_schedulez")
    told = post("status")
    assert told.code == 1
    assert told.lines == [["daily", YESTERDAYS, "0", "0", "0", "0"]]
    assert "Error: intake sms: There is no table 'sms_schedules'" in told.talk
    asked = post("status", "--json")
    assert (asked.code, [data["name"] for data in asked.json_lines]) == (1, ["daily"])


def test_the_status_of_one_whose_database_does_not_open_does_not_hide_the_others(
    cli: Cli, post: Post, folder: Path
) -> None:
    (folder / "apart.py").write_text(MODULE.replace('time")', 'time", database="sqlite:///rows.db")'))
    (folder / "rows.db").write_text("this is no database, however long one looks at it. " * 99)
    told = cli("intake", "status", "--app", "apart:app")
    assert told.code == 1
    assert [line[0] for line in told.lines] == ["daily"]
    [error] = [line for line in told.talk.splitlines() if line.startswith("Error")]
    assert error.startswith("Error: intake sms: DatabaseError: ")
    assert "file is not a database" in error


def test_intakes_are_in_an_app(cli: Cli, post: Post, folder: Path) -> None:
    assert "--app" in cli("intake", "status").talk
    assert cli("intake", "status").code == 2
    (folder / "plain.py").write_text('from onejob import App\napp = App("sqlite:///jobs.db")\n')
    none = cli("intake", "status", "--app", "plain:app")
    assert none.code == 3
    assert "app.intake" in none.talk
    assert json.loads(post("status", "sms", "--json").out)["name"] == "sms"


def test_a_store_that_is_not_there_is_made_by_a_run_only(cli: Cli, post: Post, folder: Path) -> None:
    (folder / "apart.py").write_text(
        MODULE.replace("jobs.db", "apart.db").replace('time")', 'time", database="sqlite:///rows.db")')
    )
    rows = sqlalchemy.create_engine("sqlite:///rows.db")
    with rows.begin() as connection:
        connection.exec_driver_sql(TABLES[0])
        connection.exec_driver_sql(
            "insert into sms_schedules (id, phone, message, scheduled_time) values (1, '+1', 'm', '2025-08-06 20:30')"
        )
    rows.dispose()
    for command in (("status", "sms"), ("why", "sms", "1"), ("allow", "sms", "1")):
        told = cli("intake", *command, "--app", "apart:app")
        assert told.code == 1
        assert "There is no store sqlite:///apart.db yet" in told.talk
    assert not (folder / "apart.db").exists()
    assert cli("intake", "run", "sms", "--app", "apart:app").lines == [
        ["sms", "sms_schedules", "1", "0", "0"]
    ]
    assert cli("intake", "status", "sms", "--app", "apart:app").code == 0


@pytest.mark.parametrize("driver", ["psycopg", "psycopg_async", "asyncpg"])
@pytest.mark.parametrize("command", [("run",), ("why", "sms", "1"), ("allow", "sms", "1"), ("status", "sms")])
def test_a_database_that_is_down_is_named_in_one_line(
    post: Post, folder: Path, driver: str, command: tuple[str, ...]
) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
    url = f"postgresql+{driver}://me:hush@127.0.0.1:{port}/rows"
    (folder / "apart.py").write_text(MODULE.replace('time")', f'time", database="{url}")'))
    told = Cli()("intake", *command, "--app", "apart:app")
    assert told.code == 1
    assert told.talk.startswith("Error: "), told.talk
    assert f"postgresql+{driver}://127.0.0.1:{port}/rows, cannot be opened" in told.talk
    assert len(told.talk.splitlines()) == 1
    assert "hush" not in told.talk


def test_a_database_that_refuses_a_statement_is_named_in_one_line(post: Post, folder: Path) -> None:
    (folder / "rows.db").write_bytes(b"no database at all" * 100)
    (folder / "apart.py").write_text(MODULE.replace('time")', 'time", database="sqlite:///rows.db")'))
    told = Cli()("intake", "run", "sms", "--app", "apart:app")
    assert told.code == 1
    assert told.talk.startswith("Error: DatabaseError: "), told.talk
    assert len(told.talk.splitlines()) == 1
