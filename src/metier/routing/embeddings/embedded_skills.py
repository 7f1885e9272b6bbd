"""Find similar skills with embeddings, of a server or of a model in a folder. Where that fails, words alone rank."""

from collections.abc import Iterable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from itertools import batched
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

import anyio
from anyio.to_thread import run_sync

from metier.routing.catalog import DescribedSkill
from metier.routing.index import leave_out_exclusions
from metier.routing.similar import DEPTH, EmbeddingsFailed, FoundSimilar, Similar
from metier.routing.vectors import Vector, VectorFile, name_text

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


MAX_CHARACTERS = 2_000
"""Of one text: small models read no more."""
BATCH = 64


class EmbeddedSkills:
    """The skills of one catalog by name, each with the text that stands for it. For one run or command."""

    def __init__(self, skills: Iterable[DescribedSkill], embeddings: Embeddings, *, cache_folder: Path) -> None:
        self._texts = {
            skill.name: f"{skill.name}: {leave_out_exclusions(skill.description)}"[:MAX_CHARACTERS] for skill in skills
        }
        self._embeddings = embeddings
        self._cache_folder = cache_folder
        self._vectors: dict[bytes, Vector] = {}
        self._identity = ""
        """Whose vectors these are."""
        self._failure = ""

    async def find(self, query: str) -> FoundSimilar:
        """The nearest skills. What failed once is not asked again: every further request would wait too."""
        if not self._failure and self._texts:
            try:
                async with self._embeddings.open() as embedder:
                    return await self._find(embedder, query[:MAX_CHARACTERS])
            except EmbeddingsFailed as failed:
                self._failure = failed.sentence
        return FoundSimilar(failure=self._failure)

    async def _find(self, embedder: Embedder, query: str) -> FoundSimilar:
        file = VectorFile(self._cache_folder, embedder.identity)
        if self._identity != embedder.identity:
            self._vectors, self._identity = await run_sync(file.load), embedder.identity
        (wanted,) = await embedder.embed([query])
        if wanted is None:
            return FoundSimilar()
        await self._fill(embedder, file, size=len(wanted))
        return FoundSimilar(await run_sync(self._rank, wanted))

    async def _fill(self, embedder: Embedder, file: VectorFile, *, size: int) -> None:
        """Ask for what is missing. What arrived is kept also where time runs out: the next request continues there."""
        vectors = self._vectors
        for key in [key for key, vector in vectors.items() if len(vector) != size]:
            del vectors[key]
        named = {name_text(text): text for text in self._texts.values()}
        missing = [key for key in named if key not in vectors]
        fresh: dict[bytes, Vector] = {}
        try:
            for batch in batched(missing, BATCH):
                found = await embedder.embed([named[key] for key in batch])
                made = {key: vector for key, vector in zip(batch, found, strict=True) if vector is not None}
                if any(len(vector) != size for vector in made.values()):
                    raise EmbeddingsFailed("The embeddings server sent vectors of different lengths")
                fresh.update(made)
        finally:
            vectors.update(fresh)
            if fresh:
                # At the end, where the newest are: these stay longest.
                used = {key: vectors[key] for key in named if key in vectors}
                with anyio.CancelScope(shield=True):
                    await run_sync(lambda: file.save(used, size=size))

    def _rank(self, wanted: Vector) -> tuple[Similar, ...]:
        known: Mapping[str, Vector | None] = {
            name: self._vectors.get(name_text(text)) for name, text in self._texts.items()
        }
        near = [Similar(name, wanted.cosine(vector)) for name, vector in known.items() if vector is not None]
        return tuple(sorted(near, key=lambda each: (-each.score, each.skill_name))[:DEPTH])
