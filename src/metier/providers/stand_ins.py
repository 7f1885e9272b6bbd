"""Providers without a connection of their own: for missing keys, for dry runs, and for `allowed_models`."""

from collections.abc import Collection
from typing import NoReturn

from metier.messages import ModelReply
from metier.providers.base import ModelRequest, Observer, Provider, ServerAddress, get_server
from metier.providers.failures import CallFailed, MissingKey, ModelNotAllowed
from metier.providers.model_names import ModelName, is_allowed


class UnavailableProvider:
    """Fails every request with the same failure, such as a missing key."""

    def __init__(self, name: str, failure: MissingKey) -> None:
        self.name = name
        self.failure = failure

    async def reply(self, request: ModelRequest, *, observe: Observer | None = None) -> NoReturn:  # noqa: ARG002
        raise self.failure

    async def count_tokens(self, request: ModelRequest) -> None:  # noqa: ARG002
        return None

    async def close(self) -> None:
        return None


class DryRunProvider:
    """Has a provider's name, but sends nothing."""

    def __init__(self, name: str) -> None:
        self.name = name

    async def reply(self, request: ModelRequest, *, observe: Observer | None = None) -> NoReturn:
        del request, observe
        raise CallFailed("A dry run sends nothing")

    async def count_tokens(self, request: ModelRequest) -> None:
        del request  # the local estimate is used instead

    async def close(self) -> None:
        return None


class AllowedProvider:
    """Restricts a provider to `allowed_models`, for every request: retries, fallbacks and summaries."""

    def __init__(self, provider: Provider, allowed: Collection[str]) -> None:
        self._provider = provider
        self._allowed = tuple(allowed)

    @property
    def name(self) -> str:
        return self._provider.name

    @property
    def server_address(self) -> ServerAddress:
        return get_server(self._provider)

    async def reply(self, request: ModelRequest, *, observe: Observer | None = None) -> ModelReply:
        """Raises `ModelNotAllowed` before anything is sent."""
        self._check(request)
        return await self._provider.reply(request, observe=observe)

    async def count_tokens(self, request: ModelRequest) -> int | None:
        self._check(request)
        return await self._provider.count_tokens(request)

    async def close(self) -> None:
        await self._provider.close()

    # Also for token counts: they send the prompt to the vendor.
    def _check(self, request: ModelRequest) -> None:
        if not is_allowed(ModelName(self.name, request.model), self._allowed):
            raise ModelNotAllowed(
                f"Model {request.model!r} is not allowed in this run", hint=f"Use one of {', '.join(self._allowed)}"
            )
