"""Which models a run may ask: one list, checked at every call, from any caller."""

from collections.abc import Collection

from metier.messages import ModelReply
from metier.providers.base import ModelRequest, Observer, Provider
from metier.providers.failures import ModelNotAllowed
from metier.providers.model_names import ModelName, is_allowed


class AllowedProvider:
    """A provider that is asked for models of a list only: retries, fallbacks and summaries all come through here."""

    def __init__(self, provider: Provider, allowed: Collection[str]) -> None:
        self._provider = provider
        self._allowed = tuple(allowed)

    @property
    def name(self) -> str:
        return self._provider.name

    async def reply(self, request: ModelRequest, *, observe: Observer | None = None) -> ModelReply:
        """Raises `ModelNotAllowed` before anything is sent."""
        self._check(request)
        return await self._provider.reply(request, observe=observe)

    async def count_tokens(self, request: ModelRequest) -> int | None:
        self._check(request)
        return await self._provider.count_tokens(request)

    async def close(self) -> None:
        await self._provider.close()

    def _check(self, request: ModelRequest) -> None:
        if not is_allowed(ModelName(self.name, request.model), self._allowed):
            raise ModelNotAllowed(
                f"Model {request.model!r} is not allowed in this run", hint=f"Allowed are {', '.join(self._allowed)}"
            )
