"""The reference names every exit code, route and public Python name, looked up where they are used.

Settings, commands and events are looked up in `tests/architecture/test_docs.py`.
"""

import re
from importlib import import_module
from pathlib import Path
from pkgutil import iter_modules

import pytest
from fastapi import APIRouter

import metier
from metier import errors
from metier.runtime import status
from metier.server import api

pytestmark = pytest.mark.slow

REFERENCE = Path(__file__).parents[2] / "docs" / "reference"


def read(page: str) -> str:
    return (REFERENCE / page).read_text("utf-8")


def test_every_exit_code_is_in_the_reference() -> None:
    kinds = [kind for kind in vars(errors).values() if isinstance(kind, type) and issubclass(kind, errors.MetierError)]
    used = {kind.exit_code for kind in kinds} | set(status.SIGNALS.values())
    constants = {name: value for name, value in vars(status).items() if name.isupper() and isinstance(value, int)}
    used |= {value for name, value in constants.items() if not name.startswith("MAX_")}

    codes, _, named = read("exit-codes.md").partition("## Errors")

    assert used == {
        int(code) for row in re.findall(r"^\| ([\d, ]+) \|", codes, re.MULTILINE) for code in row.split(",")
    }
    assert [kind.__name__ for kind in kinds if f"`{kind.__name__}`" not in named] == []


def test_every_route_of_the_api_is_in_the_reference() -> None:
    page = read("http.md")
    routers = [
        vars(import_module(f"metier.server.api.{found.name}")).get("router") for found in iter_modules(api.__path__)
    ]

    routes = [
        f"{method} /api/v1{getattr(route, 'path', '')}".replace(":path}", "}")
        for router in routers
        if isinstance(router, APIRouter)
        for route in router.routes
        for method in getattr(route, "methods", set[str]())
    ]

    assert len(routes) > 30
    assert [route for route in routes if f"\n### `{route}`\n" not in page] == []


@pytest.mark.parametrize("name", [name for name in metier.__all__ if not name.startswith("_")])
def test_every_public_python_name_is_in_the_reference(name: str) -> None:
    assert f"\n## metier.{name}\n" in read("python.md")
