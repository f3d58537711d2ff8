"""Becomes a server: drops root, asks to be stopped when whoever started it dies, and runs the command that follows.

A program of its own, because nothing but `exec` is safe between fork and exec in a process with threads.
"""

from __future__ import annotations

import ctypes
import os
import signal
import sys

SET_PARENT_DEATH_SIGNAL = 1  # PR_SET_PDEATHSIG of Linux


def main(parent: str, user: str, group: str, *command: str) -> None:
    """Arguments: the process that must stay alive, the user and group to be ("" for none), and the command."""
    if user:
        os.setgroups([])
        os.setgid(int(group))
        os.setuid(int(user))
    if sys.platform == "linux":  # after the change of user, which would undo it
        ctypes.CDLL(None).prctl(SET_PARENT_DEATH_SIGNAL, int(signal.SIGQUIT))
        if os.getppid() != int(parent):
            sys.exit("whoever started this is dead already")
    os.execv(command[0], command)


main(*sys.argv[1:])
