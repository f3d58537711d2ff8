"""Every accepted behaviour has a test on every store, and every id that a test carries is one of them."""

from __future__ import annotations

import subprocess
import sys
from collections import defaultdict
from pathlib import Path

import pytest
from acceptance_ids import TITLES
from coverage_page import COLLECTED, STORES, accepted, store_of

ROOT = Path(__file__).parents[1]


def test_every_behaviour_is_tested_on_every_store(request: pytest.FixtureRequest) -> None:
    config = request.config
    if [Path(argument).resolve() for argument in config.args] != [ROOT / "tests"]:
        this = request.node.name
        subprocess.run(
            [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "tests", "-k", this],
            cwd=ROOT,
            check=True,
            timeout=100,
        )
        return
    seen = defaultdict[str, set[str]](set)
    for item in config.stash[COLLECTED]:
        if item.get_closest_marker("torture") is None:
            for id in accepted(item):
                seen[id].add(store_of(item))
    assert seen.keys() == TITLES.keys()
    missing = {id: sorted(STORES.keys() - stores) for id, stores in seen.items()}
    assert {id: stores for id, stores in missing.items() if stores} == {}
