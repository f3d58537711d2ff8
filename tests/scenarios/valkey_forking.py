"""A process whose threads enqueue without a pause while it forks, again and again; each child enqueues one job and ends.

Run by test_valkey_forks: `valkey_forking.py URL FORKS`. Prints how the children ended.
"""

from __future__ import annotations

import os
import signal
import sys
import threading
import warnings
from collections import Counter

from onejob import App

HANDS = 4
LIMIT = 20
"""Seconds after which a child that hangs is ended by its alarm."""


def main(url: str, forks: int) -> None:
    app = App(url)

    @app.task(name="work")
    def work(number: int) -> None: ...

    over = threading.Event()

    def enqueue() -> None:
        while not over.is_set():
            work.enqueue(0)

    work.enqueue(0)
    hands = [threading.Thread(target=enqueue) for _ in range(HANDS)]
    for hand in hands:
        hand.start()
    ends: Counter[str] = Counter()
    for number in range(1, forks + 1):
        child = os.fork()
        if not child:
            signal.alarm(LIMIT)
            code = 1
            try:
                work.enqueue(number)
                code = 0
            finally:
                os._exit(code)
        ends[_named(os.waitpid(child, 0)[1])] += 1
    over.set()
    for hand in hands:
        hand.join()
    app.close()
    print(dict(ends))  # noqa: T201 - whoever started us reads it


def _named(status: int) -> str:
    if os.WIFSIGNALED(status):
        return "hung" if os.WTERMSIG(status) == signal.SIGALRM else "killed"
    return "failed" if os.WEXITSTATUS(status) else "answered"


if __name__ == "__main__":
    warnings.filterwarnings("ignore", ".*fork.*", DeprecationWarning)
    main(sys.argv[1], int(sys.argv[2]))
