"""Forks while the client of Valkey is busy in other threads: no child inherits a lock that it waits for in vain."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from stored import with_patience

HERE = Path(__file__).parent


@pytest.mark.parametrize("forks", [40, pytest.param(1_500, marks=pytest.mark.torture)])
def test_children_of_a_busy_process_are_answered(valkey_url: str, forks: int) -> None:
    program = [sys.executable, str(HERE / "valkey_forking.py"), with_patience(valkey_url), str(forks)]
    done = subprocess.run(program, capture_output=True, text=True, timeout=1_000, check=False)
    assert done.stdout == f"{{'answered': {forks}}}\n", done.stderr
