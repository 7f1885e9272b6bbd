"""Do beforehand what a process of Metier does at its first use of a part, so that its forks need not do it again.

Models, patterns and constructors are built when they are first used, which suits a short command. A process that forks
for many runs builds them once.
"""

import importlib
import sys
from collections.abc import Iterator

from pydantic import BaseModel, TypeAdapter

from metier.dataclass import complete_constructor
from metier.lazy_regex import lazy_regex

USED_LATER = (
    "anyio._backends._asyncio", "asyncio", "concurrent.futures", "encodings.ascii", "importlib.readers", "logging",
)  # fmt: skip
"""Modules that libraries import when they are used."""


def warm_process() -> None:
    """Build what the loaded modules of Metier leave for later."""
    for name in USED_LATER:
        importlib.import_module(name)
    for model in _list_models(BaseModel):
        if model.__module__.startswith("metier.") and not model.__pydantic_complete__:
            model.model_rebuild(raise_errors=False)
    for value in _list_values():
        if type(value) is lazy_regex:
            getattr(value, "flags")  # noqa: B009 - which compiles it
        elif isinstance(value, TypeAdapter):
            value.rebuild(raise_errors=False)
        elif isinstance(value, type):
            complete_constructor(value)


def _list_models(base: type[BaseModel]) -> Iterator[type[BaseModel]]:
    for model in base.__subclasses__():
        yield model
        yield from _list_models(model)


def _list_values() -> Iterator[object]:
    for name, module in list(sys.modules.items()):
        if name.startswith("metier."):
            yield from list(vars(module).values())
