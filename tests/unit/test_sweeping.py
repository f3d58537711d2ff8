"""Sweeping wake-up folders: the dead go, the living and the strange stay."""

from __future__ import annotations

import os
import socket
import stat
from collections.abc import Iterator
from pathlib import Path

import pytest

from onejob.stores.sqlite import sweeping
from onejob.stores.sqlite.signals import _bind  # pyright: ignore[reportPrivateUsage]
from onejob.stores.sqlite.sweeping import LEAST_AGE, sweep


@pytest.fixture(autouse=True)
def unhurried(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sweeping, "LONGEST", 60.0)


@pytest.fixture
def listening(tmp_path: Path) -> Iterator[Path]:
    """A folder in which somebody listens, and somebody dead did."""
    folder = tmp_path / "living"
    folder.mkdir()
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as living:
        living.bind(str(folder / "1.sock"))
        leave_a_socket(folder)
        yield folder


def leave_a_socket(folder: Path) -> None:
    folder.mkdir(exist_ok=True)
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as dead:
        dead.bind(str(folder / "2.sock"))


def let_lie(*folders: Path) -> None:
    for folder in folders:
        then = folder.stat().st_mtime - LEAST_AGE - 1
        os.utime(folder, (then, then))


def test_the_dead_go_and_the_living_stay(tmp_path: Path, listening: Path) -> None:
    killed, empty, strange, new = (tmp_path / name for name in ("killed", "empty", "strange", "new"))
    leave_a_socket(killed)
    leave_a_socket(new)
    for folder in (empty, strange):
        folder.mkdir()
    (strange / "mine.txt").write_text("not a socket")
    (strange / "note.sock").write_text("no socket either")
    let_lie(listening, killed, empty, strange)
    sweep(tmp_path)
    assert {path.name for path in tmp_path.iterdir()} == {"living", "strange", "new"}
    assert [path.name for path in listening.iterdir()] == ["1.sock"]
    assert [path.name for path in new.iterdir()] == ["2.sock"]
    assert {path.name for path in strange.iterdir()} == {"mine.txt", "note.sock"}


def test_links_are_not_followed(tmp_path: Path) -> None:
    elsewhere = tmp_path / "elsewhere"
    leave_a_socket(elsewhere)
    let_lie(elsewhere)
    place = tmp_path / "place"
    place.mkdir()
    (place / "link").symlink_to(elsewhere)
    sweep(place)
    assert (elsewhere / "2.sock").exists()
    assert (place / "link").is_symlink()


def test_a_place_that_is_not_there_is_no_trouble(tmp_path: Path) -> None:
    sweep(tmp_path / "nowhere")


def test_a_long_sweep_is_left_to_the_next(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    empty = tmp_path / "empty"
    empty.mkdir()
    let_lie(empty)
    monkeypatch.setattr(sweeping, "LONGEST", 0.0)
    sweep(tmp_path)
    assert empty.exists()


def test_a_socket_that_finds_no_place_is_closed(tmp_path: Path) -> None:
    before = len(list(Path("/proc/self/fd").iterdir()))
    assert _bind(tmp_path / ("too-long-for-a-socket-" * 10)) is None
    assert len(list(Path("/proc/self/fd").iterdir())) == before


def test_a_link_of_somebody_elses_is_no_place_to_meet(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ours, theirs = tmp_path / "ours", tmp_path / "theirs"
    ours.mkdir()
    theirs.symlink_to(ours)
    real = Path.lstat

    def lstat(path: Path) -> os.stat_result:
        about = list(real(path))
        about[stat.ST_UID] += path == theirs
        return os.stat_result(about)

    monkeypatch.setattr(Path, "lstat", lstat)
    assert _bind(theirs / "folder") is None
    bound = _bind(ours / "folder")
    assert bound is not None
    bound.close()
