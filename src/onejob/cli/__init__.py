"""The `onejob` command. Everything heavier than this is imported once it is needed."""

from __future__ import annotations

import sys

__all__ = ["interrupted", "main"]

INTERRUPTED = 130
ENDED_BY_IT = frozenset({"worker", "dev", "top"})


def interrupted() -> int:
    """The exit code after Ctrl-C: 0 for what ends in no other way, even if it had hardly begun."""
    return 0 if sys.argv[1:] and sys.argv[1] in ENDED_BY_IT else INTERRUPTED


def main() -> None:
    """Run the command line."""
    try:
        from onejob.cli.program import program

        program(prog_name="onejob")
    except KeyboardInterrupt:  # while it was still being imported
        print(file=sys.stderr)
        sys.exit(interrupted())
