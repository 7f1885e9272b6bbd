"""Embeddings of an OpenAI-compatible server."""

from collections.abc import AsyncGenerator, Mapping, Sequence
from contextlib import asynccontextmanager

import anyio

from metier.providers.connection import Connection
from metier.providers.facts import FactBook
from metier.providers.failures import CallFailed, ReplyBroken
from metier.providers.transport import Rest, exchange
from metier.providers.wire import as_list, as_objects, serialize
from metier.routing.options import EmbeddingsOptions
from metier.routing.skill import EmbeddingsFailed
from metier.routing.vectors import Vector, build_vector

_NAME = "The embeddings server"


class ServerEmbeddings:
    def __init__(self, options: EmbeddingsOptions, *, key: str) -> None:
        self._options = options
        self._key = key

    @asynccontextmanager
    async def open(self) -> "AsyncGenerator[_Server]":
        try:
            with exchange(_NAME, self._options.timeout_seconds):
                rest = self._open()
                try:
                    yield _Server(rest, self._options)
                finally:
                    with anyio.CancelScope(shield=True):
                        await rest.aclose()
        except CallFailed as failed:
            # Without its hint, which is about chat models.
            raise EmbeddingsFailed(failed.message) from failed

    def _open(self) -> Rest:
        headers = {"Authorization": f"Bearer {self._key}"} if self._key else {}
        connection = Connection(facts=FactBook({}), key=self._key)
        return Rest(connection, _NAME, root=self._options.base_url, headers=headers)


class _Server:
    def __init__(self, rest: Rest, options: EmbeddingsOptions) -> None:
        self._rest = rest
        self._model = options.model
        self.identity = f"{options.base_url} {options.model}"

    async def embed(self, texts: Sequence[str]) -> list[Vector | None]:
        body = {"model": self._model, "input": list(texts), "encoding_format": "float"}
        reply = await self._rest.fetch("/embeddings", serialize(body))
        return _read_vectors(as_objects(reply.get("data")), len(texts))


def _read_vectors(items: Sequence[Mapping[str, object]], wanted: int) -> list[Vector | None]:
    """Read one vector per text, all of one length. Raises `ReplyBroken` for anything else."""
    # The protocol numbers the vectors, so they need not come in the order of the texts.
    by_index = {item.get("index", at): item for at, item in enumerate(items)}
    vectors: list[Vector | None] = []
    size = 0
    for at in range(wanted):
        numbers = as_list(by_index.get(at, {}).get("embedding"))
        values = [float(number) for number in numbers if isinstance(number, int | float)]
        vector = build_vector(values) if len(values) == len(numbers) else None
        if vector is None or len(vector) != (size or len(vector)):
            raise ReplyBroken(f"{_NAME} didn't send a valid vector for each text")
        size = len(vector)
        vectors.append(vector)
    return vectors
