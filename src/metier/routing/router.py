"""The door to routing: an index of a catalog that ranks requests, and `rank` for a catalog that is used once."""

from collections.abc import Iterable, Sequence
from functools import lru_cache

from metier.dataclass import dataclass
from metier.routing.index import IndexTables, build_tables
from metier.routing.ranking import rank_skills
from metier.routing.skill import RoutableSkill, SkillCandidate


@dataclass(frozen=True, slots=True)
class RoutingIndex:
    """A catalog, ready for requests."""

    tables: IndexTables

    def __len__(self) -> int:
        return len(self.tables)

    def rank(self, query: str, k: int) -> list[SkillCandidate]:
        """The `k` best skills for a request, best first; a catalog of at most `k` skills comes back whole."""
        return rank_skills(self.tables, query, k)


def build_index(skills: Iterable[RoutableSkill]) -> RoutingIndex:
    """Index a catalog. The order of the skills does not matter."""
    return _build_index(tuple(skills))


@lru_cache(maxsize=8)
def _build_index(skills: tuple[RoutableSkill, ...]) -> RoutingIndex:
    """Kept, because the runs of a process mostly have the same catalog."""
    return RoutingIndex(build_tables(skills))


def rank(query: str, skills: Sequence[RoutableSkill], k: int = 8) -> list[SkillCandidate]:
    """The `k` best skills for a request, best first. Ask `build_index` where a catalog serves several requests."""
    return build_index(skills).rank(query, k)
