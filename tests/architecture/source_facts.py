"""Facts about the package's files, collected in one pass because parsing takes seconds."""

import ast
import functools
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).resolve().parents[2]
SOURCE = ROOT / "src" / "metier"


class SourceFile(NamedTuple):
    path: Path
    lines: int
    is_silent: bool
    """Has code and does not say at its top what it is."""
    functions: tuple[tuple[str, int], ...]
    """With their numbers of lines."""
    classes: tuple[str, ...]
    imports: tuple[str, ...]
    """Dotted names of modules, and of what is taken from them."""

    @property
    def is_ours(self) -> bool:
        return "bundled" not in self.path.relative_to(SOURCE).parts


@functools.cache
def read_sources() -> tuple[SourceFile, ...]:
    return tuple(_read(path) for path in sorted(SOURCE.rglob("*.py")))


def _read(path: Path) -> SourceFile:
    text = path.read_text(encoding="utf-8")
    tree = ast.parse(text)
    nodes = list(ast.walk(tree))
    functions = [node for node in nodes if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)]
    return SourceFile(
        path=path,
        lines=len(text.splitlines()),
        is_silent=bool(text.strip()) and not ast.get_docstring(tree),
        functions=tuple((node.name, (node.end_lineno or 0) - node.lineno + 1) for node in functions),
        classes=tuple(node.name for node in nodes if isinstance(node, ast.ClassDef)),
        imports=tuple(_list_imports(nodes)),
    )


def _list_imports(nodes: list[ast.AST]) -> Iterator[str]:
    for node in nodes:
        match node:
            case ast.Import(names=names):
                yield from (each.name for each in names)
            case ast.ImportFrom(module=str(module), names=names):
                yield from (f"{module}.{each.name}" for each in names)
            case ast.Call(func=ast.Attribute(attr="import_module"), args=[ast.Constant(value=str(module)), *_]):
                yield module
            case _:
                pass
