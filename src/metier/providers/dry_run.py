"""Stands for the provider of a dry run, which is planned for and never asked."""

from typing import NoReturn

from metier.providers.base import ModelRequest, Observer
from metier.providers.failures import CallFailed


class DryRunProvider:
    """Has a name and no connection."""

    def __init__(self, name: str) -> None:
        self.name = name

    async def reply(self, request: ModelRequest, *, observe: Observer | None = None) -> NoReturn:
        del request, observe
        raise CallFailed("A dry run sends nothing")

    async def count_tokens(self, request: ModelRequest) -> None:
        """The local estimate has to do."""
        del request

    async def close(self) -> None:
        return None
