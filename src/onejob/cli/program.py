"""The commands of `onejob` by name; each module is imported when its command is asked for."""

from __future__ import annotations

from importlib import import_module

import click

COMMANDS = {
    "demo": "onejob.cli.demo:demo",
    "worker": "onejob.cli.worker:worker",
}


class Program(click.Group):
    """A group that imports its commands late."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        """All names, in the order in which people meet them."""
        return list(COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """Import one command."""
        if cmd_name not in COMMANDS:
            return None
        module, _, name = COMMANDS[cmd_name].partition(":")
        return getattr(import_module(module), name)


@click.group(cls=Program, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(package_name="onejob")
def program() -> None:
    """A durable job queue in which the same work is never queued twice."""
