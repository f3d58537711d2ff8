"""The commands of `onejob` by name, and how the program ends; each command is imported when it is asked for."""

from __future__ import annotations

import errno
import io
import os
import sys
from collections.abc import Callable, Sequence
from importlib import import_module
from typing import Any, Final

import click

from onejob.cli import interrupted

PIPE_CLOSED: Final = 141
NO_ROOM: Final = frozenset({errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EIO})
"""What a full or broken disk says to one who writes."""

COMMANDS: Final = {
    "demo": ("onejob.cli.demo:demo", "Watch duplicates being absorbed, on a temporary store."),
    "init": ("onejob.cli.init:init", "Write a small app to start from."),
    "dev": ("onejob.cli.dev:dev", "Run an app's jobs, and start again whenever a .py file changes."),
    "worker": ("onejob.cli.worker:worker", "Run the jobs of an app."),
    "enqueue": ("onejob.cli.enqueue:enqueue", "Ask for a task to be run, and say what became of that."),
    "status": ("onejob.cli.status:status", "Show how many jobs there are, and who runs them."),
    "jobs": ("onejob.cli.jobs:jobs", "List the jobs that a filter matches, newest first."),
    "job": ("onejob.cli.jobs:job", "Show all there is to know about a job."),
    "chain": ("onejob.cli.chain:chain", "Draw the chain of a job and what it waits for."),
    "why": ("onejob.cli.why:why", "Say why a job stands as it does, or who holds a key."),
    "keys": ("onejob.cli.keys:keys", "List the keys on record, the most recently taken first."),
    "key": ("onejob.cli.keys:key", "Change a key."),
    "lanes": ("onejob.cli.lanes:lanes", "List the lanes in use, by queue and key."),
    "schedules": ("onejob.cli.schedules:schedules", "List schedules, pause, run or remove them."),
    "limits": ("onejob.cli.limits:limits", "Show or set the limits of queues."),
    "pause": ("onejob.cli.limits:pause", "Let no job of a queue start."),
    "resume": ("onejob.cli.limits:resume", "Let the jobs of a paused queue start again."),
    "intake": ("onejob.cli.intake:intake", "Look after rows of your own tables that become jobs."),
    "revoke": ("onejob.cli.amend:revoke", "Stop jobs that have not ended."),
    "retry": ("onejob.cli.amend:retry", "Run failed jobs again."),
    "delete": ("onejob.cli.amend:delete", "Remove jobs from the record."),
    "dead": ("onejob.cli.dead:dead", "List dead letters, retry or delete them."),
    "prune": ("onejob.cli.prune:prune", "Remove ended jobs that have been kept long enough."),
    "top": ("onejob.cli.top:top", "Watch queues, workers and running jobs."),
    "migrate": ("onejob.cli.migrate:migrate", "Make a store's tables, or bring them up to date."),
    "doctor": ("onejob.cli.doctor:doctor", "Say what is wrong with a store, and what to do."),
}
"""Each command's place, and what the list of commands says about it: the first line of its own help."""


class Program(click.Group):
    """A group that imports its commands late and ends quietly."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        """All names, in the order in which people meet them."""
        return list(COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """Import one command."""
        if cmd_name not in COMMANDS:
            return None
        module, _, name = COMMANDS[cmd_name][0].partition(":")
        return getattr(import_module(module), name)

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Take a command line that is text."""
        _refuse_other_encodings(args)
        return super().parse_args(ctx, args)

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """Find a command, or name a near one."""
        if args and not args[0].startswith("-") and args[0] not in COMMANDS:
            from difflib import get_close_matches

            near = get_close_matches(args[0], COMMANDS, n=1)
            hint = f" Did you mean {near[0]!r}?" if near else ""
            raise click.UsageError(f"There is no command {args[0]!r}.{hint}", ctx)
        return super().resolve_command(ctx, args)

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """List the commands without importing them."""
        with formatter.section("Commands"):
            formatter.write_dl([(name, summary) for name, (_, summary) in COMMANDS.items()])

    def invoke(self, ctx: click.Context) -> Any:
        """Run a command; when nobody reads its output any more, end without a word."""
        try:
            return super().invoke(ctx)
        except BrokenPipeError:  # which click would call an error
            _let_go_of_stdout()
            raise click.exceptions.Exit(PIPE_CLOSED) from None
        except KeyboardInterrupt:  # for which click would print a line of its own
            raise click.Abort from None

    def main(self, *args: Any, standalone_mode: bool = True, **extra: Any) -> Any:
        """Run a command line and end the process with its exit code."""
        if not standalone_mode:
            return super().main(*args, standalone_mode=False, **extra)
        _mend_streams()
        sys.exit(_exit_code(lambda: super(Program, self).main(*args, standalone_mode=False, **extra)))


def _exit_code(run: Callable[[], Any]) -> int:
    try:
        code = run()
        sys.stdout.flush()
    except click.ClickException as error:
        error.show()
        return error.exit_code
    except (KeyboardInterrupt, click.Abort):
        click.echo(err=True)
        return interrupted()
    except BrokenPipeError:
        _let_go_of_stdout()
        return PIPE_CLOSED
    except OSError as error:
        if error.errno not in NO_ROOM or error.filename is not None:
            raise
        _let_go_of_stdout()
        click.echo(f"Error: The output cannot be written: {error.strerror}.", err=True)
        return 1
    except Exception as error:
        return _known(error)
    return code if isinstance(code, int) else 0


def _known(error: Exception) -> int:
    """The exit code of an error that onejob raises on purpose; others are bugs, and shown as such."""
    from onejob.core.errors import ArgumentsInvalid, InvalidOption, OnejobError, PayloadTooLarge, UnknownTask

    if not isinstance(error, OnejobError):
        raise error
    click.echo(f"Error: {error}", err=True)
    return 2 if isinstance(error, (ArgumentsInvalid, InvalidOption, PayloadTooLarge, UnknownTask)) else 1


def _mend_streams() -> None:
    """A stream that was closed at the start goes nowhere; what a stream's encoding lacks is escaped."""
    for number, name in enumerate(("stdin", "stdout", "stderr")):
        if getattr(sys, name) is None:
            opened = os.open(os.devnull, os.O_RDWR)  # the lowest number that is free
            setattr(sys, name, os.fdopen(opened, "w" if number else "r"))
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")


def _refuse_other_encodings(arguments: Sequence[str]) -> None:
    """Python lets bytes that are not text pass as lone surrogates, which no store and no output takes."""
    for argument in arguments:
        try:
            argument.encode()
        except UnicodeEncodeError:
            raise click.UsageError(f"{argument!r} is not UTF-8 text: give it in that encoding.") from None


def _let_go_of_stdout() -> None:
    """Nobody reads any more: what is still buffered must not fail at exit."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def _show_version(ctx: click.Context, _: click.Parameter, wanted: bool) -> None:
    if not wanted or ctx.resilient_parsing:
        return
    from importlib.metadata import version

    click.echo(f"onejob {version('onejob')}")
    ctx.exit()


@click.group(
    cls=Program,
    context_settings={"help_option_names": ["-h", "--help"]},
    epilog="\b\nExample:\n  onejob init && onejob dev jobs:app",
)
@click.option(
    "--version",
    is_flag=True,
    is_eager=True,
    expose_value=False,
    callback=_show_version,
    help="Show the version.",
)
def program() -> None:
    """A durable job queue in which the same work is never queued twice."""
