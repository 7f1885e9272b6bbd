"""Find similar skills with the embeddings of an OpenAI-compatible server. Whatever goes wrong, words alone rank."""

from collections.abc import Iterable, Mapping, Sequence
from itertools import batched
from pathlib import Path

import anyio
from anyio.to_thread import run_sync

from metier.providers.connection import Connection, Server
from metier.providers.facts import FactBook
from metier.providers.failures import CallFailed, ReplyBroken
from metier.providers.json_values import as_list, as_objects, serialise
from metier.providers.rest import Rest
from metier.providers.transport import exchange
from metier.routing.catalog import DescribedSkill
from metier.routing.clauses import leave_out_exclusions
from metier.routing.embeddings_options import EmbeddingsOptions
from metier.routing.similar import DEPTH, FoundSimilar, Similar
from metier.routing.vectors import Vector, VectorFile, build_vector, name_text

MOST_CHARACTERS = 2_000
"""Of one text: small models read no more."""
BATCH = 64
_NAME = "The embeddings server"


def open_embedded(
    skills: Iterable[DescribedSkill], options: EmbeddingsOptions, *, key: str, cache_folder: Path
) -> "EmbeddedSkills":
    """What finds the similar ones of these skills. Nothing is asked before a request is there."""
    texts = {
        skill.name: f"{skill.name}: {leave_out_exclusions(skill.description)}"[:MOST_CHARACTERS] for skill in skills
    }
    return EmbeddedSkills(texts, options, VectorFile(cache_folder, f"{options.base_url} {options.model}"), key=key)


class EmbeddedSkills:
    """The skills of one catalog by name, each with the text that stands for it. For one run or command."""

    def __init__(self, texts: Mapping[str, str], options: EmbeddingsOptions, file: VectorFile, *, key: str) -> None:
        self._texts = texts
        self._options = options
        self._file = file
        self._key = key
        self._vectors: dict[bytes, Vector] | None = None
        self._failure = ""

    async def find(self, query: str) -> FoundSimilar:
        """The nearest skills. A server that failed once is not asked again: every further request would wait too."""
        if not self._failure and self._texts:
            try:
                with exchange(_NAME, self._options.timeout_seconds):
                    return await self._find(query[:MOST_CHARACTERS])
            except CallFailed as failed:
                self._failure = failed.message
        return FoundSimilar(failure=self._failure)

    async def _find(self, query: str) -> FoundSimilar:
        if self._vectors is None:
            self._vectors = await run_sync(self._file.load)
        rest = self._open()
        try:
            (wanted,) = await self._ask(rest, [query])
            await self._fill(rest, self._vectors, size=len(wanted))
        finally:
            with anyio.CancelScope(shield=True):
                await rest.aclose()
        return FoundSimilar(await run_sync(self._rank, wanted, self._vectors))

    async def _fill(self, rest: Rest, vectors: dict[bytes, Vector], *, size: int) -> None:
        """Ask for what is missing. What arrived is kept also where time runs out: the next request goes on there."""
        for key in [key for key, vector in vectors.items() if len(vector) != size]:
            del vectors[key]
        named = {name_text(text): text for text in self._texts.values()}
        missing = [key for key in named if key not in vectors]
        fresh: dict[bytes, Vector] = {}
        try:
            for batch in batched(missing, BATCH):
                found = await self._ask(rest, [named[key] for key in batch])
                if any(len(vector) != size for vector in found):
                    raise ReplyBroken(f"{_NAME} sent vectors of different lengths")
                fresh.update(zip(batch, found, strict=True))
        finally:
            vectors.update(fresh)
            if fresh:
                # At the end, where the newest are: these stay longest.
                used = {key: vectors[key] for key in named if key in vectors}
                with anyio.CancelScope(shield=True):
                    await run_sync(lambda: self._file.save(used, size=size))

    async def _ask(self, rest: Rest, texts: Sequence[str]) -> list[Vector]:
        body = {"model": self._options.model, "input": list(texts), "encoding_format": "float"}
        reply = await rest.fetch("/embeddings", serialise(body))
        return _read_vectors(as_objects(reply.get("data")), len(texts))

    def _open(self) -> Rest:
        headers = {"Authorization": f"Bearer {self._key}"} if self._key else {}
        connection = Connection(facts=FactBook({}), key=self._key)
        return Rest(connection, Server(_NAME, self._key), root=self._options.base_url, headers=headers)

    def _rank(self, wanted: Vector, vectors: Mapping[bytes, Vector]) -> tuple[Similar, ...]:
        near = [Similar(name, wanted.cosine(vectors[name_text(text)])) for name, text in self._texts.items()]
        return tuple(sorted(near, key=lambda each: (-each.score, each.skill_name))[:DEPTH])


def _read_vectors(items: Sequence[Mapping[str, object]], wanted: int) -> list[Vector]:
    """Raises `ReplyBroken` for anything but one usable vector per text, all of one length."""
    by_index = {item.get("index", at): item for at, item in enumerate(items)}
    vectors: list[Vector] = []
    for at in range(wanted):
        numbers = as_list(by_index.get(at, {}).get("embedding"))
        values = [float(number) for number in numbers if isinstance(number, int | float)]
        vector = build_vector(values) if len(values) == len(numbers) else None
        if vector is None or len(vector) != len(vectors[0] if vectors else vector):
            raise ReplyBroken(f"{_NAME} sent no usable vector for each text")
        vectors.append(vector)
    return vectors
