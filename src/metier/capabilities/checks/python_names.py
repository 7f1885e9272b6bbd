"""What the names of a Python module stand for: `t.Thread` after `import threading as t`. Reads syntax, runs nothing."""

import ast
from collections.abc import Iterator

type Function = ast.FunctionDef | ast.AsyncFunctionDef


class ImportedNames:
    """Names of one module that imports gave it, wherever in the file they stand."""

    def __init__(self, tree: ast.Module) -> None:
        self._names: dict[str, str] = {}
        for node in ast.walk(tree):
            for local, full in _imported(node):
                self._names[local] = full

    def resolve(self, node: ast.expr) -> str:
        """The full name of what an expression names, e.g. `threading.Thread`; empty for anything but a name."""
        match node:
            case ast.Name(id=name):
                return self._names.get(name, name)
            case ast.Attribute(value=value, attr=attr):
                owner = self.resolve(value)
                return f"{owner}.{attr}" if owner else ""
            case ast.Call(func=func):
                # `requests.Session().get(…)`: what a call gives is known by what was called.
                called = self.resolve(func)
                return f"{called}()" if called else ""
            case _:
                return ""


def _imported(node: ast.AST) -> Iterator[tuple[str, str]]:
    match node:
        case ast.Import(names=names):
            for alias in names:
                if alias.asname:
                    yield alias.asname, alias.name
                else:
                    first = alias.name.partition(".")[0]
                    yield first, first
        case ast.ImportFrom(module=str(module), names=names, level=0):
            for alias in names:
                yield alias.asname or alias.name, f"{module}.{alias.name}"
        case _:
            return


def find_imports(tree: ast.Module) -> Iterator[tuple[str, int]]:
    """Every module that is imported, with its line; also by a call with the name written out."""
    for node in ast.walk(tree):
        match node:
            case ast.Import(names=names):
                for alias in names:
                    yield alias.name, node.lineno
            case ast.ImportFrom(module=str(module), level=0):
                yield module, node.lineno
            case ast.Call(func=ast.Name(id="__import__"), args=[ast.Constant(value=str(name)), *_]):
                yield name, node.lineno
            case ast.Call(func=ast.Attribute(attr="import_module"), args=[ast.Constant(value=str(name)), *_]):
                yield name, node.lineno
            case _:
                pass


def find_scopes(tree: ast.Module) -> Iterator[tuple[ast.Module | Function, list[ast.AST]]]:
    """The module and each function with the nodes that belong to it and to no function inside it."""
    for scope in (tree, *(node for node in ast.walk(tree) if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef))):
        yield scope, list(_own_nodes(scope))


def _own_nodes(scope: ast.AST) -> Iterator[ast.AST]:
    for child in ast.iter_child_nodes(scope):
        yield child
        if not isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef):
            yield from _own_nodes(child)


def find_keyword(call: ast.Call, name: str) -> ast.expr | None:
    return next((keyword.value for keyword in call.keywords if keyword.arg == name), None)


def is_nothing(node: ast.expr | None) -> bool:
    return isinstance(node, ast.Constant) and node.value is None
