"""Which accepted behaviour was seen on which store: recorded while tests run, and written to `docs/COVERAGE.md`.

`make coverage` runs the tests that carry an acceptance id with `--coverage-page`. A test in `tests/unit` needs no store:
what it shows is a rule that all stores share.
"""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import pytest
from acceptance_ids import SECTIONS

CORE = "rules"
STORES = {"sqlite": "SQLite", "postgres": "PostgreSQL", "valkey": "Valkey", "cluster": "Valkey Cluster"}
Seen = Counter[tuple[str, str, bool]]
"""Tests by acceptance id, store and whether they passed."""

COLLECTED = pytest.StashKey[list[pytest.Item]]()
"""All tests that were found, also those that were not chosen."""

HEAD = """# What is accepted, and where it was seen

Written by `make coverage`, which runs every test that carries an acceptance id. Each cell says how many tests show the
behaviour there: ✓ all of them passed, ✗ one failed. *Rules* are tests of the code that all stores share and that decides
what they do; the other columns are tests on a real store. `tests/test_coverage.py` fails when a behaviour is without a
test on a store.
"""


class CoveragePage:
    """The plugin."""

    def __init__(self, file: Path) -> None:
        self._file = file
        self._seen: Seen = Counter()

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """Count a test once: where it ran, or where it could not."""
        if report.when == "call" or not report.passed:
            properties = dict(report.user_properties)
            for id in str(properties.get("accepts", "")).split():
                self._seen[id, str(properties["store"]), report.passed] += 1

    def pytest_sessionfinish(self, session: pytest.Session) -> None:
        if not hasattr(session.config, "workerinput"):
            self._file.write_text(page(self._seen))


def mark(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Have tests tell what they accept, and where; their reports take it along."""
    config.stash[COLLECTED] = list(items)
    for item in items:
        if ids := accepted(item):
            item.user_properties += [("accepts", " ".join(ids)), ("store", store_of(item))]


def accepted(item: pytest.Item) -> list[str]:
    """The acceptance ids that a test carries."""
    return [id for marker in item.iter_markers("accepts") for id in marker.args]


def store_of(item: pytest.Item) -> str:
    """The store that a test runs on; SQLite is what tests take that name none."""
    callspec = getattr(item, "callspec", None)
    chosen_params = {} if callspec is None else callspec.params
    for name, chosen in chosen_params.items():
        if name.endswith("_url") and chosen in STORES:
            return chosen
    for store in reversed(STORES):
        if any(store in name for name in getattr(item, "fixturenames", ())):
            return store
    return CORE if "unit" in item.path.parts else "sqlite"


def page(seen: Seen) -> str:
    """The whole of it as Markdown."""
    columns = {CORE: "Rules", **STORES}
    lines = [HEAD]
    for section, behaviours in SECTIONS.items():
        lines += [f"## {section}", "", f"| id | behaviour | {' | '.join(columns.values())} |"]
        lines += ["| --- | --- | " + " | ".join("---:" for _ in columns) + " |"]
        for id, title in behaviours.items():
            cells = (_cell(seen[id, store, True], seen[id, store, False]) for store in columns)
            lines.append(f"| {id} | {title} | {' | '.join(cells)} |")
        lines.append("")
    return "\n".join(lines)


def _cell(passed: int, failed: int) -> str:
    if passed + failed == 0:
        return ""
    return f"✗ {failed} of {passed + failed}" if failed else f"✓ {passed}"
