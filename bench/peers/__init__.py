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
_VERSION_IF_COMPLETE = """
import sys
from importlib.metadata import requires, version
from pip._vendor.packaging.requirements import Requirement

def check(words, extra=""):
    for needed in map(Requirement, words):
        if needed.marker is None or needed.marker.evaluate({"extra": extra}):
            if not needed.specifier.contains(version(needed.name), prereleases=True):
                sys.exit(f"{needed.name}{needed.specifier} is wanted, {version(needed.name)} is there")
            for each in needed.extras:
                check([word for word in requires(needed.name) or () if "extra ==" in word], each)

check(sys.argv[2:])
print(version(sys.argv[1]))
"""
"""Asked in an environment: the version of a peer, if all that was to be installed is there, extras included."""


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


def installed(
    name: str, requirement: str, *more: str, folder_name: str = "", python: str = ""
) -> Environment:
    """Install a peer, and what it runs best with, unless all of it is there; raises `PeerMissing`.

    `folder_name` is for one that is there twice, with other things beside it; `python` is the oldest version it runs on.
    """
    folder = VENVS / (folder_name or name)
    program = Environment(folder, "").program("python")
    if not Path(program).exists():
        _run([_interpreter(python), "-m", "venv", str(folder)])
    question = [program, "-c", _VERSION_IF_COMPLETE, name, requirement, *more]
    found = _asked(question)
    if found.returncode != 0:
        _announce(requirement)
        _run([program, "-m", "pip", "install", "--quiet", "--disable-pip-version-check", requirement, *more])
        found = _asked(question)
    if found.returncode != 0:
        raise PeerMissing(f"is not complete when installed: {_last_line(found.stderr)}")
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


def _interpreter(oldest: str) -> str:
    """A Python of that version or newer."""
    if not oldest or sys.version_info >= tuple(map(int, oldest.split("."))):
        return sys.executable
    name = f"python{oldest}"
    elsewhere = map(str, sorted(Path.home().glob(f".pyenv/versions/{oldest}*/bin/{name}")))
    for each in (shutil.which(name), *elsewhere):
        # A name on the path may lead nowhere.
        if each is not None and _asked([each, "-c", "import venv"]).returncode == 0:
            return each
    raise PeerMissing(f"needs Python {oldest}, which is not here")


def _asked(command: list[str]) -> subprocess.CompletedProcess[str]:
    try:
        return subprocess.run(command, capture_output=True, text=True, check=False, timeout=60)
    except (OSError, subprocess.TimeoutExpired) as error:
        raise PeerMissing(f"cannot be asked for its version: {error}") from error


def _last_line(said: str) -> str:
    return (said.strip() or "no reason given").splitlines()[-1]


def _announce(requirement: str) -> None:
    """It may take a minute, and happens once."""
    print(f"installing {requirement} ...", file=sys.stderr, flush=True)


def _run(command: list[str]) -> None:
    try:
        subprocess.run(command, capture_output=True, text=True, check=True, timeout=300)
    except subprocess.CalledProcessError as error:
        raise PeerMissing(f"cannot be installed: {_last_line(error.stderr or error.stdout)}") from error
    except (OSError, subprocess.TimeoutExpired) as error:
        raise PeerMissing(f"cannot be installed: {error}") from error
