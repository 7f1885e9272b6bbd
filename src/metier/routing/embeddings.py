"""Search for similar skills by embeddings of a server or a local model, opened only if one is configured.

If embeddings fail, skills are only ranked by words.
"""

from collections.abc import Iterable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from itertools import batched
from pathlib import Path
from typing import NamedTuple, Protocol

import anyio
from anyio.to_thread import run_sync

from metier.errors import ToolFailed
from metier.routing.catalog import DescribedSkill
from metier.routing.index import remove_exclusions
from metier.routing.options import EmbeddingsOptions
from metier.routing.skill import FUSED_DEPTH, EmbeddingsFailed, FoundSimilar, Similar, Similarities
from metier.routing.vectors import Vector, VectorFile, name_text
from metier.tools.web.url import WebAccess, check_domain, parse_url


class Surroundings(NamedTuple):
    """Workspace, environment and cache folder of a run or command."""

    workspace: Path
    environ: Mapping[str, str]
    cache_folder: Path


def open_similarities(
    skills: Iterable[DescribedSkill],
    options: EmbeddingsOptions | None,
    surroundings: Surroundings,
    *,
    allowed_domains: tuple[str, ...] = (),
    denied_domains: tuple[str, ...] = (),
) -> Similarities | None:
    """Open the search for similar skills, or return None if no embeddings are configured.

    Nothing is requested or read before the first search. The agent's domain rules also apply to the server.
    """
    if options is None or not options.is_on:
        return None
    if options.folder:
        # Imported on use, like the server below: the libraries of both are large, and most workspaces have neither.
        from metier.routing.static_model import FolderEmbeddings

        workspace = surroundings.workspace
        local = FolderEmbeddings(workspace / options.folder, workspace=workspace, seconds=options.timeout_seconds)
        return EmbeddedSkills(skills, local, cache_folder=surroundings.cache_folder)
    if fault := _find_server_fault(options, surroundings.environ):
        return _Unavailable(fault.message)
    try:
        access = WebAccess(allowed_domains=allowed_domains, denied_domains=denied_domains)
        check_domain(parse_url(options.base_url), access)
    except ToolFailed as error:
        return _Unavailable(error.message)
    from metier.routing.embedding_server import ServerEmbeddings

    server = ServerEmbeddings(options, key=surroundings.environ.get(options.api_key_env, ""))
    return EmbeddedSkills(skills, server, cache_folder=surroundings.cache_folder)


def find_embeddings_fault(
    options: EmbeddingsOptions, *, workspace: Path, environ: Mapping[str, str]
) -> EmbeddingsFailed | None:
    """Find a problem of the configured embeddings without asking the server; a local model is checked completely."""
    if not options.folder:
        return _find_server_fault(options, environ)
    from metier.routing.static_model import load_model

    try:
        load_model(workspace / options.folder, workspace=workspace).table.check()
    except EmbeddingsFailed as failed:
        return failed
    return None


def _find_server_fault(options: EmbeddingsOptions, environ: Mapping[str, str]) -> EmbeddingsFailed | None:
    name = options.api_key_env
    if not name or environ.get(name, ""):
        return None
    return EmbeddingsFailed(f"Variable {name!r} is not set", hint=f'Set the key: export {name}="…"')


class _Unavailable:
    """A server that cannot be used, with the reason."""

    def __init__(self, reason: str) -> None:
        self._found = FoundSimilar(failure=reason)

    async def find(self, query: str) -> FoundSimilar:
        del query
        return self._found


class Embedder(Protocol):
    @property
    def identity(self) -> str:
        """Identifies the model: vectors of different models can't be compared."""
        ...

    async def embed(self, texts: Sequence[str]) -> list[Vector | None]:
        """Embed texts as vectors of equal length; None for a text without known words. Raises `EmbeddingsFailed`."""
        ...


class Embeddings(Protocol):
    """A source of embeddings, opened once per request."""

    def open(self) -> AbstractAsyncContextManager[Embedder]:
        """Open the source under one deadline. Raises `EmbeddingsFailed`, also on exit."""
        ...


MAX_CHARACTERS = 2_000
"""Maximum length of a text: small models read no more."""
BATCH = 64


class EmbeddedSkills:
    """The skills of a catalog and the texts that represent them, for one run or command."""

    def __init__(self, skills: Iterable[DescribedSkill], embeddings: Embeddings, *, cache_folder: Path) -> None:
        self._texts = {
            skill.name: f"{skill.name}: {remove_exclusions(skill.description)}"[:MAX_CHARACTERS] for skill in skills
        }
        self._embeddings = embeddings
        self._cache_folder = cache_folder
        self._vectors: dict[bytes, Vector] = {}
        self._identity = ""
        """The model of the vectors."""
        self._failure = ""

    async def find(self, query: str) -> FoundSimilar:
        """Find the most similar skills. After a failure it doesn't try again, or every later request would wait."""
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
        """Embed missing texts. Vectors received before a timeout are saved, so the next request continues there."""
        vectors = self._vectors
        # A server may serve another model under the same name, which shows in the length of its vectors.
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
                # Moved to the end of the file, because the oldest vectors are deleted first.
                used = {key: vectors[key] for key in named if key in vectors}
                with anyio.CancelScope(shield=True):
                    await run_sync(lambda: file.save(used, size=size))

    def _rank(self, wanted: Vector) -> tuple[Similar, ...]:
        known: Mapping[str, Vector | None] = {
            name: self._vectors.get(name_text(text)) for name, text in self._texts.items()
        }
        near = [Similar(name, wanted.cosine(vector)) for name, vector in known.items() if vector is not None]
        return tuple(sorted(near, key=lambda each: (-each.score, each.skill_name))[:FUSED_DEPTH])
