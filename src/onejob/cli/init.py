"""`onejob init`: an app of eight lines to start from."""

from __future__ import annotations

import keyword
import sys
from pathlib import Path
from typing import Final

import click

from onejob.cli.output import emit, example, say

APP: Final = '''\
"""The jobs of this project. To run them: onejob dev MODULE:app"""
from onejob import App, Unique
app = App("sqlite:///jobs.db")


@app.task(unique=Unique.once(by="user"))
def send_welcome(user: str, name: str = "you") -> str:
    return f"Welcome {name}, your account {user} is ready."
'''


@click.command(epilog=example("onejob init jobs.py"))
@click.argument("file", default="jobs.py", type=click.Path(dir_okay=False, path_type=Path))
def init(file: Path) -> None:
    """Write a small app to start from.

    FILE is jobs.py unless you say otherwise; an existing one is left alone.
    """
    module = file.stem
    if file.suffix != ".py" or not module.isidentifier() or keyword.iskeyword(module):
        raise click.UsageError(f"{str(file)!r} cannot be imported: name a file such as jobs.py.")
    if module == "onejob" or module in sys.stdlib_module_names:
        raise click.UsageError(f"{file.name} would hide the module {module!r}: name a file such as jobs.py.")
    try:
        with file.open("x", encoding="utf-8") as made:
            made.write(APP.replace("MODULE", module))
    except FileExistsError:
        raise click.ClickException(f"{file} exists already and was left alone: name another file.") from None
    except OSError as error:
        raise click.ClickException(f"{file} cannot be written: {error.strerror}.") from None
    emit(str(file))
    say(
        f"Next, run its jobs:   onejob dev {module}:app\n"
        f"and elsewhere ask:    onejob enqueue --app {module}:app send_welcome user=u1\n"
        "then look at it:       export ONEJOB_URL=sqlite:///jobs.db; onejob jobs\n"
        "Ask twice, and the second one is kept."
    )
