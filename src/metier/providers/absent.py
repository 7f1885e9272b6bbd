"""Stands for a provider that cannot be used for want of a key, so that a run can begin, say so, and end."""

from typing import NoReturn

from metier.providers.base import ModelRequest, Observer
from metier.providers.failures import MissingKey


class AbsentProvider:
    """Never sends anything."""

    def __init__(self, name: str, failure: MissingKey) -> None:
        self.name = name
        self.failure = failure

    async def reply(self, request: ModelRequest, *, observe: Observer | None = None) -> NoReturn:  # noqa: ARG002
        raise self.failure

    async def count_tokens(self, request: ModelRequest) -> None:  # noqa: ARG002
        return None

    async def close(self) -> None:
        return None
