"""The `onejob` command. Everything heavier than this is imported once it is needed."""

from __future__ import annotations

__all__ = ["main"]


def main() -> None:
    """Run the command line."""
    from onejob.cli.program import program

    program(prog_name="onejob")
