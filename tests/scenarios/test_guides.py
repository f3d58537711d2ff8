"""The Python in the README and in the guides is run as it is printed."""

from __future__ import annotations

import ast
import contextvars
import inspect
import logging
import re
import subprocess
import sys
from pathlib import Path
from types import CodeType, SimpleNamespace
from typing import Any

import pytest

import onejob
from onejob import App, Queue
from onejob.testing import drain

ROOT = Path(__file__).parents[2]
GUIDES = sorted(ROOT.glob("docs/guides/*.md"))


def blocks(page: Path) -> list[str]:
    """The pieces of Python on a page, in order."""
    return re.findall(r"^```python\n(.*?)^```", page.read_text(), re.DOTALL | re.MULTILINE)


def compiled(source: str, page: Path) -> CodeType:
    """Ready to be run in a module of its own, where `await` may stand at the top."""
    return compile(source, page.name, "exec", flags=ast.PyCF_ALLOW_TOP_LEVEL_AWAIT, dont_inherit=True)


@pytest.fixture
def folder(tmp_path: Path, own_modules: None, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("ONEJOB_URL", raising=False)
    return tmp_path


def surroundings() -> dict[str, Any]:
    """What the guides take for granted: an app, all public names, and things of the reader's own."""
    names: dict[str, Any] = {name: getattr(onejob, name) for name in onejob.__all__}
    return names | {
        "__name__": "guide",
        "onejob": onejob,
        "logging": logging,
        "app": App("memory:", queues={"mail": Queue(dead_letter="mail-dead")}),
        "trace": contextvars.ContextVar[str]("trace"),
        "record": SimpleNamespace(event="", job="", task="", queue="", attempt=1, key=""),
    }


@pytest.mark.parametrize("page", [ROOT / "README.md", *GUIDES], ids=lambda page: page.name)
async def test_what_a_page_shows_compiles(page: Path) -> None:
    for source in blocks(page):
        compiled(source, page)


# Not `workers.md`, because a task of process=True must stand in a module; `testing.md` is run by pytest, below.
@pytest.mark.parametrize(
    "name",
    [
        "chains",
        "cli",
        "dead-letters",
        "hooks",
        "intake",
        "lanes",
        "payloads",
        "revocation",
        "schedules",
        "uniqueness",
    ],
)
def test_what_a_guide_shows_runs(name: str, folder: Path) -> None:
    page = ROOT / f"docs/guides/{name}.md"
    names = surroundings()
    with names["app"]:
        for source in blocks(page):
            result = eval(compiled(source, page), names)
            assert not inspect.isawaitable(result)
        names["app"].close()  # the guide may have made its own


def test_the_worked_example_of_the_guide_to_chains_counts(folder: Path) -> None:
    page = ROOT / "docs/guides/chains.md"
    names = surroundings()
    with names["app"] as app:
        for source in blocks(page):
            eval(compiled(source, page), names)
        drain(app, queues=["default", "parts"])
        assert names["primes"].result() == 9592
        assert app.count("queue:parts state:completed") == 1_000


def test_the_first_program_of_the_readme_prints_what_it_says(folder: Path) -> None:
    page = ROOT / "README.md"
    first, receipt, *_ = blocks(page)
    (folder / "jobs.py").write_text(first)
    told = run("jobs.py").splitlines()
    promised = re.search(r"\$ python jobs\.py\n(.*?)\n\n", page.read_text(), re.DOTALL)
    assert promised is not None
    assert [blurred(line) for line in told] == [blurred(line) for line in promised[1].splitlines()]
    (folder / "more.py").write_text(
        f"from jobs import *\nfrom onejob.testing import drain\ndrain(app)\n{receipt}"
    )
    assert 'holds key "u1" (completed' in run("more.py")


def test_the_tour_of_the_readme_runs(folder: Path) -> None:
    [tour] = [source for source in blocks(ROOT / "README.md") if "async def main" in source]
    (folder / "tour.py").write_text(f"{tour}\nimport asyncio\nasyncio.run(main())\n")
    assert run("tour.py") == ""


def test_the_steps_of_the_readme_run_one_after_the_other(folder: Path) -> None:
    [steps] = [source for source in blocks(ROOT / "README.md") if "continue_with(charge" in source]
    (folder / "steps.py").write_text(steps)
    assert run("steps.py") == ""
    (folder / "more.py").write_text(
        "from steps import *\nfrom onejob.testing import drain\ndrain(app)\n"
        "print(app.jobs('task:report').jobs[0].result.decode())\n"
        "with app.transaction() as tx:\n    print(tx.execute('select count(*) from paid'))\n"
    )
    told = run("more.py")
    assert told.count("is on its way") == 3
    assert "[(3,)]" in told


def test_the_tests_of_the_guide_to_testing_pass(folder: Path) -> None:
    for source in blocks(ROOT / "docs/guides/testing.md"):
        file = re.match(r"# ([a-z_]+\.py)", source)
        assert file is not None, source
        (folder / file[1]).write_text(source)
    assert "3 passed" in run("-m", "pytest", "-q", "-p", "no:cacheprovider", "-p", "no:randomly")


def blurred(line: str) -> str:
    """A line without what differs each time: ids and lengths of time."""
    return re.sub(
        r"[\d.]+ m?s old", "… old", re.sub(r"01a1e[0-9a-f…-]+|[0-9a-f]{8}-[0-9a-f-]{27}", "ID", line)
    )


def run(*arguments: str) -> str:
    done = subprocess.run(
        [sys.executable, *arguments], capture_output=True, text=True, timeout=60, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout
