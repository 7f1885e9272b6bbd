"""Open what the settings say ranks skills beside their words. Loads the HTTP client only where something is set."""

from collections.abc import Iterable, Mapping
from pathlib import Path

from metier.errors import ToolFailed
from metier.routing.catalog import DescribedSkill
from metier.routing.embeddings_options import EmbeddingsOptions
from metier.routing.similar import FoundSimilar, Similarities
from metier.tools.web.url import check_domain, parse_url


def open_similarities(
    skills: Iterable[DescribedSkill],
    options: EmbeddingsOptions | None,
    *,
    environ: Mapping[str, str],
    cache_folder: Path,
    allowed_domains: tuple[str, ...] = (),
    denied_domains: tuple[str, ...] = (),
) -> Similarities | None:
    """What finds the similar ones of these skills; nothing where no server is named.

    The domains are those of the agent: a server that it may not go to is not asked on its behalf either.
    """
    if options is None or not options.base_url:
        return None
    key = environ.get(options.api_key_env, "") if options.api_key_env else ""
    if options.api_key_env and not key:
        return _Closed(f"Variable {options.api_key_env!r} is not set")
    try:
        check_domain(parse_url(options.base_url), allowed=allowed_domains, denied=denied_domains)
    except ToolFailed as error:
        return _Closed(error.message)
    from metier.routing.embeddings import open_embedded

    return open_embedded(skills, options, key=key, cache_folder=cache_folder)


class _Closed:
    """A server that cannot be asked."""

    def __init__(self, reason: str) -> None:
        self._found = FoundSimilar(failure=reason)

    async def find(self, query: str) -> FoundSimilar:
        del query
        return self._found
