"""onejob: a durable job queue in which any notion of a duplicate job is one line of policy."""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from onejob.public import *  # noqa: F403 - the names are stated there, and only there
else:
    import importlib
    import importlib.util

    # Late, because `onejob --help` comes through this package too, and has no need of any of it.

    def __getattr__(name: str) -> Any:
        # `from onejob import store` asks here first; a module must not wait for those that import it.
        if importlib.util.find_spec(f"{__name__}.{name}") is None:
            public = importlib.import_module("onejob.public")
            if name == "__all__" or name in public.__all__:
                globals()[name] = found = getattr(public, name)
                return found
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")

    def __dir__() -> list[str]:
        return [*importlib.import_module("onejob.public").__all__, *(n for n in globals() if n[:2] == "__")]
