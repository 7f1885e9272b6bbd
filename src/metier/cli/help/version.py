"""`agent version`: which Metier this is."""

import platform
import sys

import typer

from metier.cli.shared.output import write_json, write_line
from metier.cli.skill.catalog import AsJson
from metier.version import __version__

app = typer.Typer(rich_markup_mode=None, add_completion=False)


@app.command()
def version(*, as_json: AsJson = False) -> None:
    """Show the version of Metier; `agent --version` does the same."""
    if as_json:
        write_json({"version": __version__, "python": platform.python_version(), "program": sys.executable})
        return
    write_line(f"agent {__version__}")
