"""The `onejob` command. Everything heavier than this is imported once it is needed."""

from __future__ import annotations

import sys

__all__ = ["INTERRUPTED", "main"]

INTERRUPTED = 130
"""The exit code after Ctrl-C."""


def main() -> None:
    """Run the command line."""
    try:
        from onejob.cli.program import program

        program(prog_name="onejob")
    except KeyboardInterrupt:  # while it was still being imported
        print(file=sys.stderr)
        sys.exit(INTERRUPTED)
