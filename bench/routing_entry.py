"""The product's router behind the interface of the scorer of the routing data: `--entry routing_entry:build`."""
from collections.abc import Callable, Sequence
from typing import TypedDict, NotRequired
from metier.routing.index import build_index
from metier.routing.rank import rank_index
from metier.routing.skill import RoutableSkill
class Tool(TypedDict):
    id: str
    name: str
    description: str
    tags: list[str]
    body_terms: NotRequired[str]
def build(tools: Sequence[Tool]) -> Callable[[str, int], list[str]]:
    index = build_index(
        RoutableSkill(id=t["id"],name=t["name"],description=t["description"],tags=tuple(t["tags"]),body=t.get("body_terms","")) for t in tools)
    return lambda query, k: [c.skill_id for c in rank_index(index, query, k)]
