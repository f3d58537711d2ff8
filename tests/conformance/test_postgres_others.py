"""The PostgreSQL store keeps its promises on every other version of the server that is installed here, too."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from servers.postgres import PROGRAMS

HERE = Path(__file__).parent
MOST_TELLING = "TestClaim or TestChains or TestLanes or TestInspect"
"""Between them they send nearly every statement; what is decided of the answers is the same on every server."""


def installed() -> list[Path]:
    """The folders with programs of servers that came with the system; without any there is nothing to show."""
    usual = {path.parent for path in Path("/usr/lib/postgresql").glob("*/bin/postgres")}
    found = shutil.which("postgres")
    every = sorted(usual if found is None else usual | {Path(found).resolve().parent})
    if not every:
        pytest.skip("no other PostgreSQL server is installed here")
    return every


@pytest.mark.timeout(600)
def test_other_servers_that_are_installed_keep_the_most_telling_promises(tmp_path: Path) -> None:
    for programs in installed():
        keeps_its_promises(programs, tmp_path, "-k", MOST_TELLING)


@pytest.mark.torture
def test_other_servers_that_are_installed_keep_every_promise(tmp_path: Path) -> None:
    for programs in installed():
        keeps_its_promises(programs, tmp_path)


def keeps_its_promises(programs: Path, folder: Path, *chosen: str) -> None:
    place = f"--basetemp={folder / programs.parent.name}"
    suite = str(HERE / "test_postgres.py")
    done = subprocess.run(
        [
            sys.executable,
            "-m",
            "pytest",
            "-q",
            "-p",
            "no:cacheprovider",
            "--no-header",
            place,
            *chosen,
            suite,
        ],
        env={name: value for name, value in os.environ.items() if not name.startswith("PYTEST_")}
        | {PROGRAMS: str(programs)},
        cwd=HERE.parents[1],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, f"{programs}:\n{done.stdout[-4000:]}\n{done.stderr[-2000:]}"
