"""Embeddings of a model in a folder of this machine. Nothing is sent anywhere."""

from collections.abc import AsyncGenerator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path

import anyio
from anyio.to_thread import run_sync

from metier.routing.embeddings.static_model import StaticModel, load_model
from metier.routing.similar import EmbeddingsFailed
from metier.routing.vectors import Vector


class FolderEmbeddings:
    def __init__(self, folder: Path, *, workspace: Path, seconds: float) -> None:
        self._folder = folder
        self._workspace = workspace
        self._seconds = seconds

    @asynccontextmanager
    async def open(self) -> "AsyncGenerator[_Model]":
        try:
            with anyio.fail_after(self._seconds):
                yield _Model(await run_sync(lambda: load_model(self._folder, workspace=self._workspace)))
        except TimeoutError as error:
            raise EmbeddingsFailed(
                f"The embedding model in '{self._folder}' was not ready within {self._seconds:g} seconds",
                hint="The next request goes on there; routing.embeddings.timeout_seconds gives it more time",
            ) from error


class _Model:
    def __init__(self, model: StaticModel) -> None:
        self._model = model
        self.identity = model.identity

    async def embed(self, texts: Sequence[str]) -> list[Vector | None]:
        return await run_sync(lambda: [self._model.embed(text) for text in texts])
