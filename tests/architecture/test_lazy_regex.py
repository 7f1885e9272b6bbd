"""Patterns of `metier.lazy_regex` behave as compiled ones do, and no module compiles one when it is imported."""

import ast
import copy
import gc
import importlib
import pickle
import pkgutil
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

import metier
from metier.lazy_regex import lazy_regex

SOURCES = Path(metier.__file__).parent
PROGRAMS = frozenset({"line_runner.py"})
"""Handed to an interpreter as text: they import the standard library only."""


def test_a_lazy_pattern_answers_as_a_compiled_one_does() -> None:
    text = "One, two,  THREE"
    expression, flags = r"(?P<word>[a-z]+)(,)?", re.IGNORECASE
    lazy, compiled = lazy_regex(expression, flags), re.compile(expression, flags)

    assert [match.groups() for match in lazy.finditer(text)] == [match.groups() for match in compiled.finditer(text)]
    assert lazy.findall(text) == compiled.findall(text)
    assert lazy.sub(r"<\g<word>>", text) == compiled.sub(r"<\g<word>>", text)
    assert lazy.subn("-", text, count=1) == compiled.subn("-", text, count=1)
    assert lazy.split(text) == compiled.split(text)
    assert (lazy.match(text, 4), bool(lazy.search(text, 4))) == (None, True)
    assert lazy.fullmatch(text) is None
    assert (lazy.flags, lazy.groups, lazy.groupindex) == (compiled.flags, compiled.groups, compiled.groupindex)
    assert (lazy.pattern, repr(lazy)) == (compiled.pattern, repr(compiled))


def test_a_lazy_pattern_of_bytes_can_be_copied_and_pickled() -> None:
    lazy = lazy_regex(rb"\d+")

    for same in (copy.copy(lazy), copy.deepcopy(lazy), pickle.loads(pickle.dumps(lazy))):
        assert same.findall(b"7 and 12") == [b"7", b"12"]


def test_an_attribute_that_no_pattern_has_is_refused() -> None:
    with pytest.raises(AttributeError, match="nothing"):
        _ = getattr(lazy_regex("a"), "nothing")  # noqa: B009


def test_every_lazy_pattern_of_metier_can_be_compiled() -> None:
    for module in pkgutil.walk_packages(metier.__path__, "metier."):
        if not module.name.startswith(("metier.bundled", "metier.testing")):
            importlib.import_module(module.name)

    found = [each for each in gc.get_objects() if type(each) is lazy_regex]
    assert len(found) > 300
    for each in found:
        assert each.groups >= 0, each.pattern


def test_no_module_compiles_a_pattern_when_it_is_imported() -> None:
    eager = [
        f"{path.relative_to(SOURCES)}:{line}"
        for path in SOURCES.rglob("*.py")
        if "bundled" not in path.parts and path.name not in PROGRAMS
        if "compile" in (text := path.read_text(encoding="utf-8"))
        for line in _find_eager_patterns(ast.parse(text))
    ]
    assert eager == [], "write `lazy_regex(…)` of `metier.lazy_regex` there"


def _find_eager_patterns(node: ast.AST) -> Iterator[int]:
    for child in ast.iter_child_nodes(node):
        if isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda):
            continue
        if isinstance(child, ast.Call) and ast.unparse(child.func) == "re.compile":
            yield child.lineno
        yield from _find_eager_patterns(child)
