"""An intake as its user holds it: take rows in, see how it stands, ask about a row, let one be scheduled again."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any, Final

from onejob.core.errors import InvalidOption, shown
from onejob.core.options import MAX_BULK, Seconds, check_name, millis, whole_number
from onejob.intake.sources import Query, Rows, Source, Table
from onejob.intake.views import Allowed, IntakeReport, IntakeStatus, Progress, RowExplanation, TableStatus

if TYPE_CHECKING:
    from onejob.client import Client
    from onejob.intake.catalog import Catalog
    from onejob.intake.database import RowDatabase
    from onejob.intake.looking import FoundRow
    from onejob.intake.pages import Parts
    from onejob.intake.rows import ArgumentsOf, KeyOf, RowReader
    from onejob.tasks import Sender

SHORTEST_INTERVAL: Final = 100


class Intake:
    """Turns rows into jobs, each row once; every worker of an app that declares it does so by itself."""

    def __init__(
        self,
        name: str,
        source: Source,
        reader: RowReader,
        client: Callable[[], Client],
        *,
        look_ahead: int,
        per_fetch: int,
        every: float,
        default_key: bool,
    ) -> None:
        self.name = name
        self.source = source
        self.task = reader.task
        self.queue = reader.queue
        self.every = every
        """Seconds between fetches, on average."""
        self.default_key = default_key
        self._reader = reader
        self._client = client
        self._look_ahead = look_ahead
        self._per_fetch = per_fetch
        self._made: tuple[Client, Parts, RowDatabase | None, Catalog | None] | None = None
        self._last: IntakeReport | None = None

    def run(self, *, on_page: Callable[[Progress], None] | None = None) -> IntakeReport:
        """Take in everything that is due within the look-ahead; `on_page` hears how far it is, page by page."""
        return self._client().call(self.arun(on_page=on_page), instead="await intake.arun()")

    async def arun(self, *, on_page: Callable[[Progress], None] | None = None) -> IntakeReport:
        """As `run`, in async code."""
        _, _, catalog = self._parts()
        if catalog is not None:
            catalog.forget()
        return await self.atick(on_page)

    async def atick(self, on_page: Callable[[Progress], None] | None = None) -> IntakeReport:
        """As `arun`, for who comes often: which tables there are is asked once a minute."""
        from onejob.intake.taking import Run
        from onejob.transactions import refuse_nesting

        parts, database, catalog = self._parts()
        # Elsewhere than in the store's own database, it would wait in vain for the writer that is held.
        refuse_nesting(parts.client.store)
        run = Run(parts, await parts.client.store.time(), on_page)
        try:
            if isinstance(self.source, Rows):
                await run.take_rows(self.source)
            else:
                assert database is not None
                assert catalog is not None
                await run.take_tables(catalog, database, self._table)
        finally:
            self._last = run.report()
        return self._last

    def status(self) -> IntakeStatus:
        """How many rows there are, are scheduled, and are pending, per table."""
        return self._client().call(self.astatus(), instead="await intake.astatus()")

    async def astatus(self) -> IntakeStatus:
        """As `status`, in async code."""
        from onejob.intake.looking import table_statuses

        parts, database, catalog = self._parts()
        tables: tuple[TableStatus, ...] = (TableStatus(name=self.name),)
        if database is not None and catalog is not None:
            catalog.forget()  # whoever asks may just have made the index, or a table
            tables = await table_statuses(parts, catalog, database)
        last = self._last
        return IntakeStatus(
            name=self.name,
            task=self.task,
            queue=self.queue,
            tables=tables,
            failed=0 if last is None else last.failed,
            last=last,
        )

    async def acheck(self) -> None:
        """Raise if its tables are not there, or are not as it needs them."""
        parts, _, catalog = self._parts()
        if catalog is not None:
            now = await parts.client.store.time()
            await catalog.usable(now, now + parts.look_ahead)

    def explain_row(self, id: Any, *, table: str | None = None) -> RowExplanation:
        """Say why a row is or is not scheduled; where several tables have that id, `table` names one."""
        return self._client().call(self.aexplain_row(id, table=table), instead="await intake.aexplain_row(…)")

    async def aexplain_row(self, id: Any, *, table: str | None = None) -> RowExplanation:
        """As `explain_row`, in async code."""
        from onejob.intake.looking import explain

        found = await self._find(id, table)
        return await explain(self._parts()[0], found, id, self.every)

    async def aexplain_rows(self, id: Any, *, table: str | None = None) -> list[RowExplanation]:
        """The same for each table that has a row of that id, the oldest day first; nothing if none has."""
        from onejob.intake.looking import explain

        parts = self._parts()[0]
        return [await explain(parts, row, id, self.every) for row in await self._find_all(id, table)]

    def allow(self, id: Any, *, table: str | None = None, force: bool = False) -> Allowed:
        """Let a row be scheduled again: forgets its key and clears its flag.

        While its job has not ended the answer is `queued` and nothing changes, unless `force=True`.
        """
        return self._client().call(
            self.aallow(id, table=table, force=force), instead="await intake.aallow(…)"
        )

    async def aallow(self, id: Any, *, table: str | None = None, force: bool = False) -> Allowed:
        """As `allow`, in async code."""
        from onejob.intake.looking import allow

        found = await self._find(id, table)
        parts, database, _ = self._parts()
        return await allow(parts, database, found, force=force)

    def __repr__(self) -> str:
        return f"<Intake {self.name}: rows become jobs of {self.task} every {self.every:g} s>"

    @property
    def _table(self) -> Table | None:
        return self.source if isinstance(self.source, Table) else None

    async def _find(self, id: Any, table: str | None) -> FoundRow | None:
        from onejob.intake.looking import the_one

        return the_one(self.name, await self._find_all(id, table), id)

    async def _find_all(self, id: Any, table: str | None) -> list[FoundRow]:
        from onejob.intake.looking import find_in_rows, find_in_tables

        parts, database, catalog = self._parts()
        if isinstance(self.source, Rows):
            return await find_in_rows(parts, self.source, id)
        assert database is not None
        assert catalog is not None
        return await find_in_tables(parts, catalog, database, self._table, id, table=table)

    def _parts(self) -> tuple[Parts, RowDatabase | None, Catalog | None]:
        """What it works with, made on first use."""
        client = self._client()
        if self._made is None or self._made[0] is not client:
            from onejob.intake.memory import HandedOver, Told
            from onejob.intake.pages import Parts
            from onejob.intake.rows import one_commit

            source, database, catalog = self.source, None, None
            if not isinstance(source, Rows):
                from onejob.intake.catalog import Catalog
                from onejob.intake.database import open_database

                database = open_database(source.database, client)
                catalog = Catalog(self.name, source, database, self._reader)
            parts = Parts(
                self.name,
                client,
                self._reader,
                self._look_ahead,
                self._per_fetch,
                None if one_commit(source) else HandedOver(),
                Told(),
            )
            self._made = client, parts, database, catalog
        return self._made[1:]


def declared(
    others: Iterable[Intake],
    name: str,
    source: Source,
    sender: Sender[..., Any],
    *,
    arguments: ArgumentsOf | None,
    key: KeyOf | None,
    look_ahead: Seconds,
    per_fetch: int,
    every: Seconds,
    client: Callable[[], Client],
    url: str,
    has_tables: bool,
) -> Intake:
    """An intake of checked settings; `others` are those that its app has already, `url` is the store's.

    `has_tables`: users can have tables of their own in the store.
    """
    from onejob.intake.rows import check_functions, reader_of

    check_name("Intake", name)
    _check_source(name, source, url, has_tables=has_tables)
    _check_sender(name, sender)
    check_functions(arguments, key)
    ahead = millis("look_ahead", look_ahead, minimum=0)
    made = Intake(
        name,
        source,
        reader_of(name, source, sender, arguments=arguments, key=key, look_ahead=ahead),
        client,
        look_ahead=ahead,
        per_fetch=whole_number("per_fetch", per_fetch, 1, MAX_BULK),
        every=millis("every", every, minimum=SHORTEST_INTERVAL) / 1000,
        default_key=key is None,
    )
    for other in others:
        _check_beside(made, other)
    return made


def _check_source(name: str, source: object, url: str, *, has_tables: bool) -> None:
    if not isinstance(source, (Table, Query, Rows)):
        raise InvalidOption(
            f"Intake {name!r} takes its rows from Table(…), Query(…) or Rows(…), not {shown(source)}."
        )
    if isinstance(source, Rows):
        return
    from importlib.util import find_spec

    if find_spec("sqlalchemy") is None:
        raise InvalidOption(
            f'Intake {name!r} reads tables through SQLAlchemy, which is not installed: pip install "onejob[intake]".'
        )
    if source.database is not None:
        from onejob.intake.files import refuse_own_file

        refuse_own_file(name, source.database, url)
    elif not has_tables:
        raise InvalidOption(
            f"Intake {name!r} reads a table, and the store has no tables of yours: say where they are with database=…, a "
            "SQLAlchemy URL or engine."
        )


def _check_sender(name: str, sender: object) -> None:
    from onejob.tasks import Sender

    if not isinstance(sender, Sender):
        raise InvalidOption(
            f"Intake {name!r} makes jobs of a task: give one, or task.using(…), not {shown(sender)}."
        )


def _check_beside(made: Intake, other: Intake) -> None:
    if made.name == other.name:
        raise InvalidOption(f"Intake {made.name!r} is declared twice: give one of them another name.")
    alike = (made.task, made.queue) == (other.task, other.queue)
    if alike and made.default_key and other.default_key:
        raise InvalidOption(
            f"Intakes {made.name!r} and {other.name!r} would make the same keys, as both are for task {made.task!r} "
            "and name a row by its id and time: give one of them a key of its own with key=…."
        )
