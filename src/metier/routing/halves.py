"""Take the tally of a large catalog in two processes."""

import marshal
from array import array
from collections.abc import Callable, Sequence
from typing import Any, cast

from metier.routing.skill import RoutableSkill
from metier.routing.tally import Bodies, Lengths, Pairs, Tally, Told, take_tally
from metier.second_process import Parcel, work_in_halves

type _Columns = tuple[bytes, ...]


def take_tallies[Skill](skills: Sequence[Skill], load: Callable[[Skill], RoutableSkill]) -> list[Tally]:
    """The tallies of the two halves of a large catalog, else one; `load` reads a skill when its turn comes."""
    return work_in_halves(
        range(len(skills)),
        lambda part: take_tally((load(skills[number]) for number in part), first=part[0] if part else 0),
        Parcel(_pack, _unpack),
    )


def _pack(tally: Tally) -> bytes:
    words, forms, names, *groups = tally
    return marshal.dumps((words, forms, names, [[column.tobytes() for column in group] for group in groups]))


def _unpack(data: bytes) -> Tally:
    # From `_pack` in a copy of this very process.
    words, forms, names, (lengths, bodies, told, pairs) = cast(
        "tuple[dict[str, int], dict[str, int], list[list[int]], list[_Columns]]",
        marshal.loads(data),  # noqa: S302 - as above
    )
    return Tally(
        words,
        forms,
        names,
        Lengths(*_arrays("III", lengths)),
        Bodies(*_arrays("III", bodies)),
        Told(*_arrays("IIdIB", told)),
        Pairs(*_arrays("QII", pairs)),
    )


def _arrays(typecodes: str, columns: _Columns) -> list[Any]:
    return [array(typecode, column) for typecode, column in zip(typecodes, columns, strict=True)]
