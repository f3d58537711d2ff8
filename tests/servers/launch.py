"""Becomes a server: drops root, asks for a signal when whoever started it dies, and runs the command that follows.

A program of its own, because nothing but `exec` is safe between fork and exec in a process with threads.
"""

from __future__ import annotations

import ctypes
import os
import sys

SET_PARENT_DEATH_SIGNAL = 1  # PR_SET_PDEATHSIG of Linux


def main(parent: str, at_death: str, user: str, group: str, *command: str) -> None:
    """Arguments: the process that must stay alive, the signal for when it does not, who to be ("" for oneself), what to run."""
    if user:
        os.setgroups([])
        os.setgid(int(group))
        os.setuid(int(user))
    if sys.platform == "linux":  # after the change of user, which would undo it
        ctypes.CDLL(None).prctl(SET_PARENT_DEATH_SIGNAL, int(at_death))
        if os.getppid() != int(parent):
            sys.exit("whoever started this is dead already")
    os.execv(command[0], command)


main(*sys.argv[1:])
