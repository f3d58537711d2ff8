"""Functions as another process finds them: by module and name, never as bytes that would have to be trusted.

A script that is run as `__main__` is run again there, as `__mp_main__`, the name that `multiprocessing` gives
it: what stands under `if __name__ == "__main__":` is left out.
"""

from __future__ import annotations

import importlib
import runpy
import sys
from collections.abc import Callable
from contextvars import ContextVar
from pathlib import Path
from types import ModuleType
from typing import Any, cast

import msgspec

from onejob.core.errors import InvalidOption, shown

MAIN = ("__main__", "__mp_main__")

loading: ContextVar[bool] = ContextVar("onejob_loading", default=False)
"""True while a process for jobs imports what it needs: nothing may be served from there."""


class Reference(msgspec.Struct, frozen=True, array_like=True):
    """A function at the top level of a module, or in a class there."""

    module: str
    name: str


class Script(msgspec.Struct, frozen=True, array_like=True):
    """What was run as `__main__`: the module of `python -m`, or a file."""

    module: str | None
    path: str | None


def reference_to(what: str, function: Callable[..., Any]) -> Reference:
    """Where another process finds this function; `InvalidOption` if it cannot, saying what to do."""
    module, name = getattr(function, "__module__", None), getattr(function, "__qualname__", None)
    if not isinstance(module, str) or not isinstance(name, str):
        raise InvalidOption(
            f"{what} is {shown(function)}, which has no name that another process could import."
        )
    if "<" in name:
        raise InvalidOption(
            f"{what} is {name}, which another process cannot find: define it with `def` at the top level of a module."
        )
    if module in MAIN and running_script() is None:
        raise InvalidOption(
            f"{what} was typed into a shell or a notebook, where another process cannot find it: put it into a file."
        )
    return Reference("__main__" if module in MAIN else module, name)


def running_script() -> Script | None:
    """What this process was started with; None for a shell, a notebook or `python -c`."""
    main = sys.modules.get("__mp_main__") or sys.modules.get("__main__")
    spec, file = getattr(main, "__spec__", None), getattr(main, "__file__", None)
    if spec is not None and spec.name not in MAIN:
        return Script(spec.name, None)
    if isinstance(file, str) and Path(file).exists():
        return Script(None, str(Path(file).absolute()))
    return None


def find(reference: Reference, script: Script | None) -> object:
    """Import what a reference names, in the process that was sent it; `script` is what its sender runs."""
    token = loading.set(True)
    try:
        found: object = (
            _main(script) if reference.module in MAIN else importlib.import_module(reference.module)
        )
        for part in reference.name.split("."):
            found = cast("object", getattr(found, part))
    except AttributeError as error:
        raise InvalidOption(
            f"Module {reference.module} has no {reference.name!r} when a process for jobs imports it: define it at "
            f"the top level, and not under a condition that holds in the worker only ({error})."
        ) from error
    finally:
        loading.reset(token)
    return found


def _main(script: Script | None) -> ModuleType:
    """Run the sender's script in this process, once."""
    if "__mp_main__" in sys.modules:
        return sys.modules["__mp_main__"]
    if script is None:
        raise InvalidOption("The worker runs no script that another process could run again.")
    if script.module is not None:
        content = runpy.run_module(script.module, run_name="__mp_main__", alter_sys=True)
    else:
        content = runpy.run_path(cast("str", script.path), run_name="__mp_main__")
    main = ModuleType("__mp_main__")
    main.__dict__.update(content)
    sys.modules["__main__"] = sys.modules["__mp_main__"] = main
    return main
