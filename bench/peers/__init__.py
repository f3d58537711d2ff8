"""Other job queues, each in an environment of its own, so that none of them is a dependency of ours."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

VENVS = Path(__file__).parent.parent / ".venvs"
APPS = Path(__file__).parent / "apps"


class PeerMissing(Exception):
    """A peer cannot be measured here; the text says why."""


@dataclass(frozen=True, slots=True)
class Environment:
    """Where a peer lives."""

    folder: Path
    version: str

    def program(self, name: str) -> str:
        """An executable of that environment."""
        return str(self.folder / "bin" / name)


def installed(name: str, requirement: str, *more: str, folder_name: str = "") -> Environment:
    """Install a peer, and what it runs best with, unless it is there; raises `PeerMissing`.

    `folder_name` is for one that is there twice, with other things beside it.
    """
    folder = VENVS / (folder_name or name)
    environment = Environment(folder, "")
    python = environment.program("python")
    if not Path(python).exists():
        _run([sys.executable, "-m", "venv", str(folder)])
    question = f"from importlib.metadata import version; print(version({name!r}))"
    found = subprocess.run([python, "-c", question], capture_output=True, text=True, check=False)
    if found.returncode != 0:
        _announce(requirement)
        _run([python, "-m", "pip", "install", "--quiet", "--disable-pip-version-check", requirement, *more])
        found = subprocess.run([python, "-c", question], capture_output=True, text=True, check=True)
    return Environment(folder, found.stdout.strip())


def installed_node(name: str, requirement: str, *more: str, folder_name: str = "") -> Environment:
    """The same for Node's packages: the newest that the Node of this machine takes.

    `folder_name` is for one that has a namesake in Python.
    """
    if shutil.which("node") is None or shutil.which("npm") is None:
        raise PeerMissing("needs Node.js, which is not here")
    folder = VENVS / (folder_name or name)
    manifest = folder / "node_modules" / name / "package.json"
    if not manifest.exists():
        _announce(requirement)
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "package.json").write_text(json.dumps({"type": "module", "private": True}))
        _run(["npm", "install", "--prefix", str(folder), "--no-audit", "--no-fund", requirement, *more])
    for app in APPS.glob("*.mjs"):
        shutil.copy(app, folder)  # a module finds packages only beside itself
    return Environment(folder, json.loads(manifest.read_text())["version"])


def _announce(requirement: str) -> None:
    """It may take a minute, and happens once."""
    print(f"installing {requirement} ...", file=sys.stderr, flush=True)


def _run(command: list[str]) -> None:
    try:
        subprocess.run(command, capture_output=True, text=True, check=True, timeout=300)
    except subprocess.CalledProcessError as error:
        reason = (error.stderr or error.stdout or "no reason given").strip().splitlines()[-1]
        raise PeerMissing(f"cannot be installed: {reason}") from error
    except (OSError, subprocess.TimeoutExpired) as error:
        raise PeerMissing(f"cannot be installed: {error}") from error
