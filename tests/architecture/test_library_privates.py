"""No module of a library is imported whose name says that it is private."""

import ast
from collections.abc import Iterator
from pathlib import Path

import metier

SOURCES = Path(metier.__file__).parent


def test_no_private_module_of_a_library_is_imported() -> None:
    private = [
        f"{path.relative_to(SOURCES)}: {name}"
        for path in SOURCES.rglob("*.py")
        if "bundled" not in path.parts
        for name in _list_imports(ast.parse(path.read_text(encoding="utf-8")))
        if not name.startswith(("metier.", "__future__")) and any(part.startswith("_") for part in name.split("."))
    ]
    assert private == []


def _list_imports(tree: ast.Module) -> Iterator[str]:
    for node in ast.walk(tree):
        match node:
            case ast.Import(names=names):
                yield from (each.name for each in names)
            case ast.ImportFrom(module=str(module), names=names):
                yield from (f"{module}.{each.name}" for each in names)
            case ast.Call(func=ast.Attribute(attr="import_module"), args=[ast.Constant(value=str(module)), *_]):
                yield module
            case _:
                pass
