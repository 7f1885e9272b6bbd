"""Count and weigh the words of a large catalog in two processes."""

import marshal
from array import array
from collections.abc import Callable, Sequence
from typing import Any, cast

from metier.routing.index import Columns
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


def build_spans(spans: Sequence[range], build: Callable[[range], Columns]) -> list[Columns]:
    """The second of two spans in another process."""
    halves = work_in_halves(
        spans, lambda part: [build(span) for span in part], Parcel(_pack_columns, _unpack_columns), worth=2
    )
    return [columns for half in halves for columns in half]


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


def _pack_columns(spans: list[Columns]) -> bytes:
    return marshal.dumps([[column.tobytes() for column in span] for span in spans])


def _unpack_columns(data: bytes) -> list[Columns]:
    spans = cast("list[_Columns]", marshal.loads(data))  # noqa: S302 - from `_pack_columns` in a copy of this process
    return [Columns(*_arrays("IIfBf", span)) for span in spans]


def _arrays(typecodes: str, columns: _Columns) -> list[Any]:
    return [array(typecode, column) for typecode, column in zip(typecodes, columns, strict=True)]
