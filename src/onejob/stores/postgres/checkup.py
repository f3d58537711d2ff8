"""checkup: facts about the server, who else is on it, and our tables, gathered without changing anything."""

from __future__ import annotations

from typing import Final

import msgspec

from onejob.core.errors import MissingDriver
from onejob.store import Finding
from onejob.stores.postgres import migrate
from onejob.stores.postgres.driver import Link
from onejob.stores.postgres.engine import Engine
from onejob.stores.postgres.failures import explained, sqlstate
from onejob.stores.postgres.findings import Facts, findings, may_look, missing_tables, tables, unreachable

OLD_TRANSACTION: Final = 60
"""Seconds after which a transaction is worth a word: dead rows pile up behind it."""
OLD_SLOT: Final = 1_000_000
"""Transactions that a replication slot may lag behind."""
LONG_WAIT: Final = 5
LONG_LOCK: Final = 1
"""Seconds after which a table's lock is no longer taken for a migration's."""


async def checkup(engine: Engine) -> list[Finding]:
    """Look at the server, at who else is on it, and at our tables; see `Inspector.checkup`."""
    try:
        facts = await engine.use(lambda link, _: gather(link, engine), ready=False)
        works = await engine.at_home(engine.signals.prove)
    except MissingDriver:
        raise
    except Exception as error:
        return [unreachable(explained(error, engine.address))]
    return findings(msgspec.structs.replace(facts, notify_works=works))


async def gather(link: Link, engine: Engine) -> Facts:
    """Ask for everything that can be asked in the state that things are in."""
    schema = engine.address.schema
    facts = Facts(
        schema=schema,
        migrates=engine.address.migrates,
        server=(await link.fetch("checkup.server", ()))[0],
        rights=await link.fetch("checkup.rights", (schema, [*tables()])),
    )
    locked = await link.fetch("checkup.locked", (schema, [*tables()], LONG_LOCK))
    if locked:  # who looked into it would wait, too
        facts = msgspec.structs.replace(facts, locked=locked)
    elif may_look(facts):
        version = await _version(link)
        facts = msgspec.structs.replace(facts, version=version)
        if version == migrate.known() and not missing_tables(facts):
            [(stranded,)] = await link.fetch("checkup.stranded", ())
            facts = msgspec.structs.replace(
                facts,
                indexes=await link.fetch("checkup.indexes", (schema,)),
                bloat=await link.fetch("checkup.bloat", (schema, [*tables()])),
                stranded=stranded,
            )
    return msgspec.structs.replace(
        facts,
        unseen=(await link.fetch("checkup.unseen", ()))[0],
        transactions=await link.fetch("checkup.old_transactions", (OLD_TRANSACTION, OLD_SLOT)),
        lock_waits=await link.fetch("checkup.lock_waits", (schema, LONG_WAIT)),
    )


async def _version(link: Link) -> int | str:
    """The version of our tables; 0 if there are none, a text if it cannot be read as one."""
    try:
        return await migrate.version(link)
    except Exception as error:
        if sqlstate(error):
            raise
        return "of an unknown kind"
