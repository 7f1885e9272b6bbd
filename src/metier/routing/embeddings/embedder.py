"""The seam to what turns texts into vectors: a server, or a model in a folder. Values only."""

from collections.abc import Sequence
from contextlib import AbstractAsyncContextManager
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from metier.routing.vectors import Vector


class Embedder(Protocol):
    @property
    def identity(self) -> str:
        """Names what makes the vectors: those of another one are of no use."""
        ...

    async def embed(self, texts: Sequence[str]) -> "list[Vector | None]":
        """One for each text, all of one length; nothing for a text that the model has no word of.

        Raises `EmbeddingsFailed`.
        """
        ...


class Embeddings(Protocol):
    """Can be opened for one request after the other."""

    def open(self) -> AbstractAsyncContextManager[Embedder]:
        """For all that one request waits for, within one deadline. Raises `EmbeddingsFailed`, also at its end."""
        ...
