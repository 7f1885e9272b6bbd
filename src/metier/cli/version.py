"""`agent version`: the version, and with `--verbose` Python, the system and installed extras."""

import platform
import re
import sys
from importlib import metadata
from typing import Annotated

import typer

from metier.cli.shared.command_options import AsJson
from metier.cli.shared.output import write_json, write_line
from metier.version import __version__

app = typer.Typer(rich_markup_mode=None, add_completion=False)

_ALL = "all"
_OF_AN_EXTRA = re.compile(r"(?P<name>[\w.-]+).*\bextra == ['\"](?P<extra>[^'\"]+)")
"""A requirement of the package that belongs to an extra."""


@app.command()
def version(
    *,
    verbose: Annotated[
        bool, typer.Option("--verbose", "-v", help="Also show Python, the system and the extras.")
    ] = False,
    as_json: AsJson = False,
) -> None:
    """Show the version."""
    if as_json:
        write_json(_describe())
        return
    write_line(f"agent {__version__}")
    if verbose:
        write_line(f"python   {platform.python_version()}  {sys.executable}")
        write_line(f"system   {platform.system()} {platform.release()} {platform.machine()}")
        for extra, packages in _find_extras().items():
            found = ", ".join(f"{name} {number or 'not installed'}" for name, number in packages.items())
            write_line(f"extra    {extra:<10} {found or 'needs no package'}")


def _describe() -> dict[str, object]:
    return {
        "version": __version__,
        "python": platform.python_version(),
        "program": sys.executable,
        "system": f"{platform.system()} {platform.release()} {platform.machine()}",
        "extras": _find_extras(),
    }


def _find_extras() -> dict[str, dict[str, str | None]]:
    """Return the packages of each extra with their installed version."""
    try:
        installed = metadata.distribution("metier")
    # Metier runs from a folder of its source and is not installed.
    except metadata.PackageNotFoundError:
        return {}
    needed = [found for line in installed.requires or () if (found := _OF_AN_EXTRA.match(line))]
    names = sorted(name for name in installed.metadata.get_all("Provides-Extra") or () if name != _ALL)
    return {
        name: {each["name"]: _find_version(each["name"]) for each in needed if each["extra"] == name} for name in names
    }


def _find_version(package: str) -> str | None:
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return None
