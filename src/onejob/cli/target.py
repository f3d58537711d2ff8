"""Finding the app that a command names: `module:app`, `module` with one app in it, or `path/file.py:app`."""

from __future__ import annotations

import importlib
import sys
import traceback
from difflib import get_close_matches
from pathlib import Path
from types import ModuleType

import click
from click.core import ParameterSource

from onejob.app import App

_IMPORTING = (__file__, importlib.__file__, "<frozen importlib")
"""Whose frames lead to a module that is imported here."""


def load_app(target: str) -> App:
    """Import the module and return its app; whatever is wrong is said in one message, with near matches."""
    place, _, name = target.partition(":")
    module = _load_module(place)
    apps = {key: value for key, value in vars(module).items() if isinstance(value, App)}
    if name:
        return _named(apps, module, place, name)
    if len({id(app) for app in apps.values()}) == 1:
        return next(iter(apps.values()))
    if not apps:
        raise click.UsageError(
            f"{place} has no App in it: write `app = onejob.App(…)`, or name another module."
        )
    raise click.UsageError(f"{place} has several apps: say which, for example {place}:{next(iter(apps))}.")


def _named(apps: dict[str, App], module: ModuleType, place: str, name: str) -> App:
    found: object = module
    for part in name.split("."):
        found = getattr(found, part, None)
    if isinstance(found, App):
        return found
    if found is not None:
        raise click.UsageError(
            f"{place}:{name} is not an App but of type {type(found).__name__}.{_hint(name, apps)}"
        )
    raise click.UsageError(f"{place} has no {name!r}.{_hint(name, apps)}")


def _hint(name: str, apps: dict[str, App]) -> str:
    near = get_close_matches(name, apps, n=1) or list(apps)[:1]
    return f" Did you mean {near[0]!r}?" if near else ""


def _load_module(place: str) -> ModuleType:
    if place.endswith(".py"):
        path = Path(place).resolve()
        if not path.is_file():
            raise click.UsageError(f"There is no file {place!r}{_from_environment()}.{_near_file(path)}")
        # Imported by its own name, so that its tasks are named as when the file itself is run.
        folder, name = str(path.parent), path.stem
    else:
        folder, name = str(Path.cwd()), place
        if not name or name.startswith("."):
            raise click.UsageError(f"{place!r} names no module: give MODULE:APP or FILE.py:APP.")
    if folder not in sys.path:
        sys.path.insert(0, folder)
    try:
        return importlib.import_module(name)
    except Exception as error:
        if isinstance(error, ModuleNotFoundError) and error.name and f"{name}.".startswith(f"{error.name}."):
            raise click.UsageError(
                f"There is no module {name!r} here or among the installed ones{_from_environment()}.{_near_module(name)}"
            ) from None
        _print_error(error)
        raise click.UsageError(
            f"The module {name!r} cannot be imported: {type(error).__name__}: {error}"
        ) from error


def _from_environment() -> str:
    """Where a name comes from that nobody has typed here, and how to do without."""
    context = click.get_current_context(silent=True)
    if context is None or context.get_parameter_source("target") is not ParameterSource.ENVIRONMENT:
        return ""
    without = ", or say --url" if "url" in context.params else ""
    return f", where $ONEJOB_APP says that the app is: correct it{without}"


def _print_error(error: Exception) -> None:
    """Print a traceback that begins in the user's module, not with how it came to be imported."""
    where = error.__traceback__
    while where is not None and where.tb_frame.f_code.co_filename.startswith(_IMPORTING):
        where = where.tb_next
    traceback.print_exception(type(error), error, where)


def _near_file(path: Path) -> str:
    names = [file.name for file in path.parent.glob("*.py")] if path.parent.is_dir() else []
    near = get_close_matches(path.name, names, n=1)
    return f" Did you mean {near[0]!r}?" if near else ""


def _near_module(name: str) -> str:
    here = Path.cwd()
    names = [path.stem for path in here.glob("*.py")] + [
        path.parent.name for path in here.glob("*/__init__.py")
    ]
    near = get_close_matches(name, names, n=1)
    return f" Did you mean {near[0]!r}?" if near else ""
