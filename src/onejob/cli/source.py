"""Where a command finds its store: an app by name, a URL, the environment, or the default file."""

from __future__ import annotations

import asyncio
import functools
import logging
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Any, TypeVar

import click

from onejob.app import App
from onejob.stores import MEMORY

T = TypeVar("T")
F = TypeVar("F", bound=Callable[..., Any])


def _is_for_everyone(record: logging.LogRecord) -> bool:
    """False of what a worker says once and `doctor` finds: it is not to be read with each command."""
    return getattr(record, "event", "") != "store.not_durable"


@dataclass(frozen=True, slots=True)
class Source:
    """What the command line says about the store."""

    target: str | None
    url: str | None

    def app(self) -> App:
        """The app: `--url` as it is, else `--app` or `$ONEJOB_APP`, else `$ONEJOB_URL` or the default file."""
        logging.getLogger("onejob").addFilter(_is_for_everyone)
        if self.url == "":
            raise click.UsageError(
                "--url is empty: name a store, such as sqlite:///jobs.db, or leave it out."
            )
        if self.url is not None or self.target is None:
            return App(self.url)
        from onejob.cli.target import load_app

        return load_app(self.target)

    def run(self, body: Callable[[App], Awaitable[T]], *, may_create: bool = False) -> T:
        """Open the app, run a coroutine of it and close it; a store that is not there is not made."""
        app = self.app()

        async def inside() -> T:
            async with app:
                if not may_create and not await app.store.exists():
                    if app.url in MEMORY:
                        raise click.ClickException(
                            f"{app.url} lives in one process, and this one has just begun: give --url or $ONEJOB_URL "
                            "a file, such as sqlite:///jobs.db, or a server."
                        )
                    raise click.ClickException(
                        f"There is no store {app.url} yet. Check --url, --app, $ONEJOB_URL and $ONEJOB_APP; "
                        "`onejob migrate` makes it, or the first enqueue or worker."
                    )
                return await body(app)

        return asyncio.run(inside())


app_option = click.option(
    "--app", "target", metavar="MODULE:APP", envvar="ONEJOB_APP", help="The app.  [env: ONEJOB_APP]"
)


def refuse_options(context: click.Context, instead: str) -> None:
    """Refuse those before a subcommand, which would be read and forgotten; `instead` is what may stand behind it."""
    for name in context.params:
        if context.get_parameter_source(name) is click.core.ParameterSource.COMMANDLINE:
            command = f"onejob {context.info_name} {context.invoked_subcommand}"
            raise click.UsageError(f"Options go behind the command, as in {command} {instead}.")


def store_options(command: F) -> F:
    """Give a command `--app` and `--url`, and the `source` that they mean as its first argument."""

    @functools.wraps(command)
    def with_source(*args: Any, target: str | None, url: str | None, **options: Any) -> Any:
        context = click.get_current_context()
        given = context.get_parameter_source("target") is click.core.ParameterSource.COMMANDLINE
        if given and url is not None:
            raise click.UsageError("--app and --url exclude each other: an app knows its store.")
        return command(Source(target, url), *args, **options)

    decorated = click.option("--url", help="The store.  [env: ONEJOB_URL; default: sqlite:///onejob.db]")(
        with_source
    )
    return app_option(decorated)  # type: ignore[return-value]
