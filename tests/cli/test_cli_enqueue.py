"""`onejob init` and `onejob enqueue`: from nothing to a job, from the command line alone."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
from commands import URL, Cli, on_every_store, run

from onejob import App
from onejob.cli.init import APP

JOBS = """
import datetime as dt
from typing import Any
from onejob import App, Unique

app = App("sqlite:///jobs.db")


@app.task(unique=Unique.once(by="user"))
def send(user: str, count: int = 1) -> None: ...


@app.task
def everything(
    text: str, number: float, flag: bool, tags: list[str], when: dt.datetime, free: Any, maybe: str | None = "x"
) -> None: ...


@app.task(unique=Unique.in_flight(by="user", queued="raise"))
def strict(user: str) -> None: ...


@app.task
def plain(user: str) -> None: ...


@app.task(name="a.twice")
def first(user: str) -> None: ...


@app.task(name="b.twice")
def second(user: str) -> None: ...
"""


@pytest.fixture
def jobs(folder: Path, url: str, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An app file that `$ONEJOB_APP` names; imported afresh by each test."""
    monkeypatch.setattr(sys, "path", list(sys.path))
    monkeypatch.delitem(sys.modules, "cli_jobs", raising=False)
    (folder / "cli_jobs.py").write_text(JOBS.replace(URL, url))
    monkeypatch.setenv("ONEJOB_APP", "cli_jobs:app")
    return folder / "cli_jobs.py"


def stored(what: str = "", url: str = URL) -> list[bytes]:
    with App(url) as app:
        return [job.payload for job in app.jobs(what).jobs]


def test_init_writes_eight_lines_that_work(cli: Cli, folder: Path) -> None:
    made = cli("init", "shop_jobs.py")
    assert (made.code, made.out) == (0, "shop_jobs.py\n")
    assert "onejob dev shop_jobs:app" in made.talk
    assert len(APP.splitlines()) == 8
    compile((folder / "shop_jobs.py").read_text(), "shop_jobs.py", "exec")
    again = cli("init", "shop_jobs.py")
    assert again.code == 1
    assert "left alone" in again.talk
    assert cli("init", "not-a-module.py").code == 2
    assert cli("init", "no/such/folder/jobs.py").code == 1
    asked = run("enqueue", "--app", "shop_jobs:app", "send_welcome", "user=u1")
    assert asked.code == 0
    assert asked.out.startswith("created: ")
    assert asked.talk == ""


@on_every_store
def test_enqueue_prints_the_receipt_and_says_by_its_code_when_absorbed(cli: Cli, jobs: Path) -> None:
    first = cli("enqueue", "send", "user=u1")
    assert first.code == 0
    assert first.out.endswith('holds key "u1"\n')
    second = cli("enqueue", "cli_jobs.send", "user=u1", "count=2")
    assert second.code == 4
    assert second.out.startswith('kept: key "u1" is held by ')
    assert "other arguments" in second.out


@on_every_store
def test_a_receipt_as_json(cli: Cli, jobs: Path) -> None:
    first = cli("enqueue", "send", "user=u1", "--json").json
    second = cli("enqueue", "send", "user=u1", "--json")
    assert (first["outcome"], first["deduplicated"], first["key"]) == ("created", False, "u1")
    assert second.code == 4
    assert second.json["holder"] == first["id"] == second.json["id"]
    assert second.json["text"].startswith("kept: ")


def test_values_are_read_by_the_type_hints(cli: Cli, jobs: Path) -> None:
    made = cli(
        "enqueue", "everything", "text=123", "number=1", "flag=true", 'tags=["a","b"]',
        "when=2030-01-01T00:00:00Z", "free=[1, null]", "maybe=null",
    )  # fmt: skip
    assert made.code == 0, made.talk
    assert stored() == [
        b'{"text":"123","number":1.0,"flag":true,"tags":["a","b"],"when":"2030-01-01T00:00:00Z","free":[1,null],'
        b'"maybe":null}'
    ]
    assert cli("enqueue", "plain", "user=hello world").code == 0
    assert cli("enqueue", "plain", 'user="1"').code == 0
    assert cli("enqueue", "plain", "user=").code == 0
    assert stored("task:plain") == [b'{"user":""}', b'{"user":"1"}', b'{"user":"hello world"}']


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["send"], "is missing 'user'"),
        (["send", "user=u1", "count=many"], "args.count must be int"),
        (["send", "usr=u1"], "did you mean 'user'?"),
        (["send", "u1"], "write it as name=value"),
        (["send", "user=u1", "user=u2"], "given twice"),
        (["sned", "user=u1"], "did you mean"),
        (["twice", "user=u1"], "a.twice, b.twice"),
        (["send", "user=u1", "--delay", "soon"], "--delay takes a length of time"),
        (["send", "user=u1", "--queue", "a b"], "Queue name 'a b' is not valid"),
        (["send", "user=u1", "--priority", "99999999999"], "priority must be"),
        (["send", "user=u1", "--key", ""], "key"),
    ],
)
def test_a_wrong_call_stores_nothing(cli: Cli, jobs: Path, arguments: list[str], message: str) -> None:
    refused = cli("enqueue", *arguments)
    assert refused.code == 2
    assert message in refused.talk
    assert refused.out == ""
    assert not (jobs.parent / "jobs.db").exists() or stored() == []


def test_options_go_with_the_call(cli: Cli, jobs: Path) -> None:
    assert (
        cli("enqueue", "plain", "user=u1", "--delay", "10m", "--priority", "5", "--queue", "slow").code == 0
    )
    with App("sqlite:///jobs.db") as app:
        [job] = app.jobs().jobs
    assert (job.state, job.queue, job.priority, job.due - job.accepted) == ("delayed", "slow", 5, 600_000)


def test_a_key_can_be_given(cli: Cli, jobs: Path) -> None:
    assert cli("enqueue", "plain", "user=u1", "--key", "order-9").code == 0
    assert cli("enqueue", "plain", "user=u2", "--key", "order-9").code == 4
    assert cli("enqueue", "send", "user=u1", "--key", "mine").code == 0
    assert cli("enqueue", "send", "user=u1").code == 0
    assert cli("enqueue", "send", "user=u1", "--force").code == 0


def test_a_policy_that_refuses_is_told_on_stderr(cli: Cli, jobs: Path) -> None:
    assert cli("enqueue", "strict", "user=u1").code == 0
    refused = cli("enqueue", "strict", "user=u1")
    assert (refused.code, refused.out) == (4, "")
    assert "the policy says raise" in refused.talk


def test_a_dry_run_makes_no_store(cli: Cli, jobs: Path) -> None:
    before = cli("enqueue", "send", "user=u1", "--dry-run")
    assert before.code == 0
    assert "would be created: there is no store" in before.out
    assert not (jobs.parent / "jobs.db").exists()


@on_every_store
def test_a_dry_run_says_what_would_happen_and_stores_nothing(cli: Cli, jobs: Path) -> None:
    before = cli("enqueue", "send", "user=u1", "--dry-run")
    assert before.code == 0
    assert "would be created" in before.out
    assert cli("enqueue", "send", "count=x", "--dry-run").code == 2
    cli("enqueue", "send", "user=u1")
    again = cli("enqueue", "send", "user=u1", "--dry-run")
    assert again.code == 4
    assert "would be kept" in again.out
    assert cli("enqueue", "send", "user=u1", "--dry-run", "--json").json["next_outcome"] == "kept"
    other = cli("enqueue", "send", "user=u2", "--dry-run")
    assert other.code == 0
    assert "would be created" in other.out
    assert len(stored(url=cli.url)) == 1


def test_tasks_need_an_app(cli: Cli, folder: Path) -> None:
    assert cli("enqueue", "send", "user=u1").code == 2
    missing = cli("enqueue", "--app", "no_such_module:app", "send")
    assert missing.code == 2
    assert "no module" in missing.talk
