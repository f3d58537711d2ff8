"""The program as a whole: quick, documented, with examples that run; and how it ends."""

from __future__ import annotations

import os
import re
import shlex
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from subprocess import PIPE

import apsw
import click
import pytest
from commands import PROGRAM, Cli, Terminal, run
from shop import Shop

import onejob
from onejob.cli.program import COMMANDS, program

GUIDE = Path(__file__).parents[2] / "docs" / "guides" / "cli.md"
ENDLESS = {"demo", "dev", "worker"}
"""Commands that others test: their examples would run on."""


def commands() -> dict[str, click.Command]:
    context = click.Context(program)
    found: dict[str, click.Command] = {}
    for name in COMMANDS:
        command = program.get_command(context, name)
        assert command is not None
        found[name] = command
        if isinstance(command, click.Group):
            found |= {f"{name} {sub}": inner for sub, inner in command.commands.items()}
    return found


def examples(name: str) -> list[str]:
    epilog = commands()[name].epilog or ""
    return [line.strip() for line in epilog.splitlines() if line.strip().startswith("onejob ")]


@pytest.mark.parametrize("name", commands())
def test_every_command_is_in_the_guide(name: str) -> None:
    assert re.search(rf"^#+ .*`onejob {name}\b", GUIDE.read_text("utf-8"), re.MULTILINE), (
        f"{name} is undocumented"
    )


@pytest.mark.parametrize("name", commands())
def test_every_option_is_in_the_guide(name: str) -> None:
    text = GUIDE.read_text("utf-8")
    shared = {"--app", "--url", "--json", "--yes", "--help", "--version"}
    sections = re.split(r"^(?=#+ )", text, flags=re.MULTILINE)
    [section] = [part for part in sections if re.match(rf"#+ .*`onejob {name}`", part)]
    for parameter in commands()[name].params:
        if not isinstance(parameter, click.Option) or parameter.hidden:
            continue
        option = max(parameter.opts, key=len)
        assert option in shared or f"`{option}" in section, f"onejob {name} {option} is undocumented"
    assert all(option in text for option in shared)


@pytest.mark.parametrize("name", commands())
def test_every_help_ends_with_an_example(name: str, cli: Cli) -> None:
    shown = cli(*name.split(), "--help")
    assert shown.code == 0
    *_, heading, last = [line for line in shown.out.splitlines() if line.strip()][-3:]
    assert "Example:" in shown.out.splitlines()[-3:][0] or "Example:" in heading
    assert last.strip().startswith("onejob ")
    assert any(line.split()[1 : 1 + len(name.split())] == name.split() for line in examples(name))


@pytest.mark.usefixtures("own_modules")
@pytest.mark.parametrize("name", [name for name in commands() if name.split()[0] not in ENDLESS])
def test_every_example_runs(name: str, cli: Cli, shop: Shop, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "path", list(sys.path))
    if name != "init":
        assert cli("init").code == 0
        assert cli("enqueue", "--app", "jobs:app", "send_welcome", "user=u1").code == 0
        shop.failed()
    id = shop.app.jobs(limit=1).jobs[0].id if name != "init" else ""
    for line in examples(name):
        arguments = [id if word == "0198f3ab" else word for word in shlex.split(line)[1:]]
        outcome = cli(*arguments)
        expected = {0, 1} if name == "doctor" else {0, 3, 4}
        assert outcome.code in expected, f"{line}: {outcome}"
        assert "Traceback" not in outcome.talk


def test_the_list_of_commands_says_what_each_says_itself() -> None:
    for name, (_, summary) in COMMANDS.items():
        own = (commands()[name].help or "").split("\n")[0]
        # The other way round for the demo, whose own line says a little more.
        assert own.startswith(summary.rstrip(".")), name


def test_help_imports_nothing_that_it_does_not_need() -> None:
    script = (
        "import sys; from onejob.cli.program import program\n"
        "try: program(['--help'], prog_name='onejob')\n"
        "except SystemExit: pass\n"
        "heavy = {'onejob.app', 'onejob.public', 'rich', 'asyncio', 'msgspec', 'apsw'} & set(sys.modules)\n"
        "print(sorted(heavy), file=sys.stderr)"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert done.stderr.strip() == "[]"


def test_help_answers_in_less_than_150_milliseconds_of_work() -> None:
    assert min(_work([*PROGRAM, "--help"]) for _ in range(5)) < 0.150


def _work(command: list[str]) -> float:
    """Seconds of processor time that a command takes: others may be at work on this machine."""
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL)
    _, status, used = os.wait4(process.pid, 0)
    process.returncode = os.waitstatus_to_exitcode(status)
    assert process.returncode == 0
    return used.ru_utime + used.ru_stime


def test_the_public_names_are_handed_out_late() -> None:
    namespace: dict[str, object] = {}
    exec("from onejob import *", namespace)
    assert set(onejob.__all__) <= namespace.keys()
    assert set(onejob.__all__) <= set(dir(onejob))
    with pytest.raises(AttributeError, match="no attribute 'nothing'"):
        _ = onejob.nothing  # type: ignore[attr-defined]


def test_the_version_is_told(cli: Cli) -> None:
    assert re.fullmatch(r"onejob \d+\.\d+\.\d+\n", cli("--version").out)


def test_an_unknown_command_names_a_near_one(cli: Cli) -> None:
    outcome = cli("jbos")
    assert outcome.code == 2
    assert "Did you mean 'jobs'?" in outcome.talk
    assert outcome.out == ""
    assert cli("nonsense").code == 2


def test_wrong_options_are_a_wrong_usage(cli: Cli, shop: Shop) -> None:
    assert cli("jobs", "--limit", "0").code == 2
    assert cli("status", "--app", "a:b", "--url", "memory:").code == 2
    assert cli("status", "--url", "mysql://root:secret@db/x").code == 2
    assert "secret" not in cli("status", "--url", "mysql://root:secret@db/x").talk
    assert cli.at("jobs", "colour:red").code == 2


@pytest.mark.parametrize(
    "arguments",
    [
        ["status"],
        ["jobs"],
        ["job", "0198f3ab"],
        ["chain", "0198f3ab"],
        ["why", "u1"],
        ["keys"],
        ["key", "release", "u1", "--task", "send"],
        ["lanes"],
        ["limits"],
        ["limits", "mail", "--concurrency", "2"],
        ["pause", "mail"],
        ["resume", "mail"],
        ["revoke", "state:live", "--yes"],
        ["retry", "state:failed", "--yes"],
        ["delete", "state:failed", "--yes"],
        ["dead"],
        ["prune", "--yes"],
        ["top"],
        ["doctor"],
    ],
)
def test_a_store_that_is_not_there_is_not_made(cli: Cli, folder: Path, arguments: list[str]) -> None:
    outcome = cli.at(*arguments)
    assert outcome.code == 1
    assert "jobs.db" in outcome.talk + outcome.out
    assert list(folder.iterdir()) == []


def test_the_store_is_found_by_url_app_or_environment(
    cli: Cli, shop: Shop, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    shop.send.enqueue("u1")
    (folder / "found_app.py").write_text("import onejob\napp = onejob.App('sqlite:///jobs.db')\n")
    assert cli("jobs", "--count").code == 1
    assert cli("jobs", "--count", "--app", "found_app:app").out == "1\n"
    monkeypatch.setenv("ONEJOB_APP", "found_app:app")
    assert cli("jobs", "--count").out == "1\n"
    assert cli("jobs", "--count", "--url", "sqlite:///other.db").code == 1
    monkeypatch.delenv("ONEJOB_APP")
    monkeypatch.setenv("ONEJOB_URL", "sqlite:///jobs.db")
    assert cli("jobs", "--count").out == "1\n"


def test_a_closed_pipe_is_quiet(shop: Shop) -> None:
    shop.app.enqueue_many([shop.fail.job(order=n, text="x" * 500) for n in range(1000)])
    command = shlex.join([*PROGRAM, "jobs", "--json", "--limit", "1000", "--url", "sqlite:///jobs.db"])
    done = subprocess.run(
        ["bash", "-c", f"{command} | head -n 1; exit ${{PIPESTATUS[0]}}"],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.stderr.replace("There are more: ", "").startswith("--cursor") or done.stderr == ""
    assert done.stdout.count("\n") == 1
    assert done.returncode == 141


def test_ctrl_c_prints_a_newline_and_exits_130(shop: Shop) -> None:
    shop.send.enqueue("u1")
    with Terminal("delete", "state:live", "--url", "sqlite:///jobs.db") as terminal:
        terminal.read_until("[y/N]: ")
        terminal.wait_until_it_waits()
        terminal.process.send_signal(signal.SIGINT)
        code, seen = terminal.end()
    assert code == 130
    assert seen.partition("[y/N]:")[2].strip() == ""
    assert shop.app.count() == 1


def test_ctrl_c_while_the_program_is_still_being_imported_exits_130() -> None:
    program = """
import sys
class Interrupting:
    def find_spec(self, name, *_):
        if name == "onejob.cli.program":
            raise KeyboardInterrupt
sys.meta_path.insert(0, Interrupting())
from onejob.cli import main
main()
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout, done.stderr) == (130, "", "\n")


def test_an_empty_url_and_a_store_without_its_folder_are_told_as_what_they_are(cli: Cli) -> None:
    empty = cli("jobs", "--url", "")
    assert (empty.code, "--url is empty" in empty.talk) == (2, True)
    nowhere = cli("jobs", "--url", "sqlite:////nodir/x.db")
    assert nowhere.code == 1
    assert "cannot be made, because there is no folder /nodir" in nowhere.talk


def test_ctrl_c_ends_a_command_that_waits_for_the_store(shop: Shop, folder: Path) -> None:
    shop.send.enqueue("u1")
    shop.app.close()
    other = apsw.Connection(str(folder / "jobs.db"))
    other.execute("begin immediate")
    process = subprocess.Popen(
        [*PROGRAM, "keys", "--url", "sqlite:///jobs.db?patience=3"], stdout=PIPE, stderr=PIPE, text=True
    )
    with process:
        while not any(_opened(process.pid, folder / "jobs.db")):
            assert process.poll() is None
        process.send_signal(signal.SIGINT)
        out, talk = process.communicate(timeout=30)
    other.execute("rollback")
    other.close()
    assert (process.returncode, out, talk) == (130, "", "\n")


def _opened(pid: int, file: Path) -> Iterator[bool]:
    """Whether each descriptor of a process is that file's."""
    for descriptor in Path(f"/proc/{pid}/fd").iterdir():
        with suppress(OSError):
            yield descriptor.readlink() == file


def test_no_color_is_honoured_at_a_terminal(shop: Shop) -> None:
    shop.failed()
    arguments = ("jobs", "state:failed", "--url", "sqlite:///jobs.db")
    with Terminal(*arguments) as terminal:
        code, colourful = terminal.end()
    assert code == 0
    assert "\x1b[31m" in colourful
    with Terminal(*arguments, NO_COLOR="1") as terminal:
        assert "\x1b[3" not in terminal.end()[1]


def test_what_is_piped_has_no_colour_and_no_frame(shop: Shop) -> None:
    [id] = shop.failed()
    outcome = run("jobs", "--url", "sqlite:///jobs.db")
    assert outcome.code == 0
    assert outcome.lines[0][:4] == [id, "failed", "mail", "shop.fail"]
    assert "\x1b" not in outcome.out


def test_an_app_that_the_environment_names_in_vain_is_told_as_such(
    cli: Cli, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("ONEJOB_APP", "nowhere:app")
    told = cli("status")
    assert told.code == 2
    said = " ".join(told.talk.split())
    assert (
        "among the installed ones, where $ONEJOB_APP says that the app is: correct it, or say --url." in said
    )
    assert "$ONEJOB_APP" not in cli("status", "--app", "nowhere:app").talk
    assert "--url" not in cli("worker").talk


def test_a_store_in_memory_is_never_there_for_a_command(cli: Cli) -> None:
    told = cli("status", "--url", "memory:")
    assert told.code == 1
    assert "memory: lives in one process" in told.talk
    assert "migrate" not in told.talk
