"""What the commands on skills share: their options, and the catalog that this user sees in this folder."""

import os
from pathlib import Path
from typing import Annotated

import typer

from metier.definitions.catalog import Catalog, load_catalog
from metier.definitions.catalog_cache import find_cache_folder
from metier.definitions.sources import build_search_path
from metier.errors import UsageError

SkillsDir = Annotated[
    Path | None, typer.Option("--skills-dir", help="A further folder of skills; its skills win over all others.")
]
AsJson = Annotated[bool, typer.Option("--json", help="Write JSON.")]


def open_catalog(skills_dir: Path | None) -> Catalog:
    """The skills that this user sees in this folder."""
    if skills_dir is not None and not skills_dir.is_dir():
        raise UsageError(f"Folder {str(skills_dir)!r} does not exist", hint="Give a folder that has skills in it")
    sources = build_search_path(Path.cwd(), home=Path.home(), skills_dir=skills_dir)
    return load_catalog(sources, cache_folder=cache_folder())


def cache_folder() -> Path:
    return find_cache_folder(os.environ, home=Path.home())
