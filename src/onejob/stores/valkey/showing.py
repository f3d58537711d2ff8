"""Jobs as scripts show them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

from onejob.core.job import ChainId, Job, WorkerId
from onejob.sql.ids import id_from_bytes
from onejob.stores.valkey.asking import together
from onejob.stores.valkey.forms import STATES, shown_id, text_of
from onejob.stores.valkey.office import Office
from onejob.stores.valkey.wire import blobs

AT_ONCE: Final = 200
"""Jobs that one call is asked for. It gives fewer if they are large."""


def job_of(row: Sequence[Any], queue: str) -> Job:
    """Read a row of `showing.lua`. Text is read leniently: a damaged job must not stop a list."""
    id = id_from_bytes(row[0])
    return Job(
        id=id,
        queue=queue,
        state=STATES[row[1]],
        task=row[3].decode("utf-8", "replace"),
        priority=row[4],
        accepted=row[5],
        updated=row[6],
        due=row[7],
        expires=row[8],
        started=row[9],
        ended=row[10],
        attempt=row[11],
        failures=row[12],
        crashes=row[13],
        max_crashes=row[14],
        misses=row[15],
        items=row[16],
        worker=None if row[17] is None else WorkerId(row[17].decode()),
        aborting=bool(row[18]),
        follows=None if row[19] is None else ChainId(id_from_bytes(row[19])),
        chain=ChainId(id if row[20] is None else id_from_bytes(row[20])),
        chain_index=row[21],
        key=text_of(row[22]),
        digest=row[23],
        plan=row[24],
        options=row[25],
        origin=shown_id(row[26]),
        origin_queue=text_of(row[27]),
        lane=text_of(row[28]),
        blockers=row[29],
        payload=row[30],
        progress=row[31],
        result=row[32],
        error=text_of(row[33]),
    )


async def load(office: Office, by_queue: Mapping[str, Sequence[bytes]]) -> dict[bytes, Job]:
    """Jobs by their ids, given where they are; those that are gone are left out."""
    found = await together(_load(office, queue, ids) for queue, ids in by_queue.items())
    return {id: job for some in found for id, job in some.items()}


async def _load(office: Office, queue: str, ids: Sequence[bytes]) -> dict[bytes, Job]:
    found: dict[bytes, Job] = {}
    at = 0
    while at < len(ids):
        rows = await office.look("job", queue, blobs(list(ids[at : at + AT_ONCE])))
        found.update((row[0], job_of(row, queue)) for row in rows if row is not None)
        at += len(rows)
    return found
