"""The product's prefilter behind the interface of the scorer of the routing data.

python score.py --entry routing_entry:build            # the order, without a cut
python score.py --entry routing_entry:build_with_cut   # with the default cut of the settings
"""

from collections.abc import Callable, Sequence
from typing import NotRequired, TypedDict

from metier.routing.prefilter import DEFAULT_MIN_SCORE, prefilter
from metier.routing.ranking import RoutingIndex, build_index
from metier.routing.skill import RoutableSkill

type Route = Callable[[str, int], list[str]]


class Tool(TypedDict):
    """A skill or tool as the data has it."""

    id: str
    name: str
    description: str
    tags: list[str]
    body_terms: NotRequired[str]


def build(tools: Sequence[Tool]) -> Route:
    return _route(index_tools(tools), min_score=0)


def build_with_cut(tools: Sequence[Tool]) -> Route:
    return _route(index_tools(tools), min_score=DEFAULT_MIN_SCORE)


def index_tools(tools: Sequence[Tool]) -> RoutingIndex:
    return build_index(
        RoutableSkill(
            id=tool["id"],
            name=tool["name"],
            description=tool["description"],
            tags=tuple(tool["tags"]),
            body=tool.get("body_terms", ""),
        )
        for tool in tools
    )


def _route(index: RoutingIndex, *, min_score: float) -> Route:
    def route(query: str, k: int) -> list[str]:
        found = prefilter(index, query, top_k=k, min_score=min_score)
        return [candidate.skill_id for candidate in found.candidates[:k]]

    return route
