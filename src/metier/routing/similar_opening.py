"""Opening of the configured embeddings. Loads an HTTP client or a model only if one is configured."""

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import NamedTuple

from metier.errors import ToolFailed
from metier.routing.catalog import DescribedSkill
from metier.routing.embeddings_options import EmbeddingsOptions
from metier.routing.similar import EmbeddingsFailed, FoundSimilar, Similarities
from metier.tools.web.url import check_domain, parse_url


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
    from metier.routing.embeddings.embedded_skills import EmbeddedSkills

    if options.folder:
        from metier.routing.embeddings.static_model import FolderEmbeddings

        workspace = surroundings.workspace
        local = FolderEmbeddings(workspace / options.folder, workspace=workspace, seconds=options.timeout_seconds)
        return EmbeddedSkills(skills, local, cache_folder=surroundings.cache_folder)
    if fault := _find_server_fault(options, surroundings.environ):
        return _Unavailable(fault.message)
    try:
        check_domain(parse_url(options.base_url), allowed=allowed_domains, denied=denied_domains)
    except ToolFailed as error:
        return _Unavailable(error.message)
    from metier.routing.embeddings.server import ServerEmbeddings

    server = ServerEmbeddings(options, key=surroundings.environ.get(options.api_key_env, ""))
    return EmbeddedSkills(skills, server, cache_folder=surroundings.cache_folder)


def find_embeddings_fault(
    options: EmbeddingsOptions, *, workspace: Path, environ: Mapping[str, str]
) -> EmbeddingsFailed | None:
    """Find a problem of the configured embeddings without asking the server; a local model is checked completely."""
    if not options.folder:
        return _find_server_fault(options, environ)
    from metier.routing.embeddings.static_model import load_model

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
