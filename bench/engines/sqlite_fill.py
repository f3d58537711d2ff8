"""Fills a SQLite store of ours with copies of a row that the store itself wrote, whatever its columns are."""

from __future__ import annotations

import asyncio
from pathlib import Path

import apsw

from bench.engines import Filling, model

_NUMBERS = "with recursive numbers (n) as (select 1 union all select n + 1 from numbers where n < :count)"


def fill(url: str, path: Path, filling: Filling, count: int) -> None:
    """Make the model row, copy it `count` times, and leave the file without a log to replay."""
    asyncio.run(model.make(url, filling))
    connection = apsw.Connection(str(path))
    connection.pragma("synchronous", "off")
    connection.pragma("cache_size", -256_000)
    connection.execute("begin immediate")
    # Ids grow, as those of jobs do, but are older than any that is made now.
    identity = "cast(x'01000000' || unhex(printf('%08x', n)) || randomblob(8) as blob)"
    match filling:
        case Filling.KEYS:
            # Digests are as good as random, but inserted in their order: at random it would take minutes.
            digest = "cast(unhex(printf('%08x', n * 4294967295 / (:count + 1))) || randomblob(12) as blob)"
            new = {"digest": digest, "holder": "randomblob(16)", "number": None}
            _copy(connection, "onejob_key", new, count)
        case Filling.LANES:
            lane = "printf('lane-%08x', n)"
            _copy(connection, "onejob_job", {"id": identity, "seq": None, "lane": lane}, count)
            _copy(connection, "onejob_lane", {"key": lane}, count)
        case _:
            _copy(connection, "onejob_job", {"id": identity, "seq": None}, count)
    connection.execute("commit")
    connection.pragma("wal_checkpoint", "truncate")
    connection.close()


def _copy(connection: apsw.Connection, table: str, new: dict[str, str | None], count: int) -> None:
    """Copy the row that was made last."""
    columns = [str(row[1]) for row in connection.execute(f"pragma table_info({table})")]
    kept = [column for column in columns if new.get(column, "") is not None]
    values = [new.get(column) or column for column in kept]
    last = "order by rowid desc" if "seq" in columns or "number" in columns else ""
    connection.execute(
        f"{_NUMBERS} insert into {table} ({', '.join(kept)}) "
        f"select {', '.join(values)} from numbers, (select * from {table} {last} limit 1)",
        {"count": count},
    )
