"""Take the tally of a large catalog in two processes."""

import marshal
from array import array
from collections.abc import Callable, Sequence
from typing import cast

from metier.routing.skill import RoutableSkill
from metier.routing.tally import Tally, Told, take_tally
from metier.second_process import Parcel, work_in_halves


def take_tallies[Skill](skills: Sequence[Skill], load: Callable[[Skill], RoutableSkill]) -> list[Tally]:
    """The tallies of the two halves of a large catalog, else one; `load` reads a skill when its turn comes."""
    return work_in_halves(skills, lambda part: take_tally(map(load, part)), Parcel(_pack, _unpack))


def _pack(tally: Tally) -> bytes:
    told = [tuple(each) for each in tally.told]
    columns = [column.tobytes() for column in (tally.starts, tally.skills, tally.times)]
    return marshal.dumps((tally.words, tally.forms, told, *columns))


def _unpack(data: bytes) -> Tally:
    # From `_pack` in a copy of this very process.
    words, forms, told, *columns = cast(
        "tuple[dict[str, int], dict[str, int], list[Told], bytes, bytes, bytes]",
        marshal.loads(data),  # noqa: S302 - as above
    )
    return Tally(words, forms, [Told(*each) for each in told], *(array("I", column) for column in columns))
