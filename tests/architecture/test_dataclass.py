"""Classes of `metier.dataclass` behave as those of the standard library do."""

import copy
import dataclasses
import pickle
from collections.abc import Callable
from typing import Any

import pytest
from pydantic import TypeAdapter

from metier.dataclass import dataclass

FIELDS: tuple[dict[str, Any], ...] = (
    {},
    {"a": 1},
    {"a": 1, "b": ("x", None)},
    {"a": 1, "b": "text", "c": frozenset({2})},
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Point:
    x: int
    y: int = 2
    marks: list[str] = dataclasses.field(default_factory=list[str])
    note: str = dataclasses.field(default="", compare=False, repr=False)

    def moved(self) -> "Point":
        return dataclasses.replace(self, x=self.x + 1)


@dataclass(frozen=True, slots=True)
class Doubled:
    """Has a field that is made of another one."""

    number: int
    twice: int = dataclasses.field(init=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "twice", 2 * self.number)


@dataclass(frozen=True, slots=True)
class Tripled(Doubled):
    thrice: int = 0


def _build(decorate: Callable[..., Any], names: dict[str, Any], **options: bool) -> Any:
    body = {"__annotations__": dict.fromkeys(names, object), "__module__": __name__, "__qualname__": "Made"}
    return decorate(frozen=True, slots=True, **options)(type("Made", (), body))


@pytest.mark.parametrize("names", FIELDS, ids=len)
@pytest.mark.parametrize("kw_only", [False, True])
def test_text_equality_hash_and_shape_are_those_of_the_standard_library(names: dict[str, Any], kw_only: bool) -> None:
    ours, theirs = (_build(each, names, kw_only=kw_only) for each in (dataclass, dataclasses.dataclass))
    mine, standard = ours(**names), theirs(**names)

    assert repr(mine) == repr(standard)
    assert mine == ours(**names)
    assert mine != standard
    assert mine != object()
    assert hash(mine) == hash(ours(**names))
    assert ours.__match_args__ == theirs.__match_args__
    assert ours.__slots__ == theirs.__slots__
    assert dataclasses.asdict(mine) == dataclasses.asdict(standard)


def test_fields_that_do_not_compare_or_show_are_left_out() -> None:
    assert Point(x=1, note="a") == Point(x=1, note="b")
    assert repr(Point(x=1, note="a")) == "Point(x=1, y=2, marks=[])"


def test_values_cannot_be_changed_and_have_no_room_for_more() -> None:
    point: Any = Point(x=1)

    for name in ("x", "other"):
        with pytest.raises(dataclasses.FrozenInstanceError, match="cannot assign"):
            setattr(point, name, 3)
    with pytest.raises(dataclasses.FrozenInstanceError, match="cannot delete"):
        del point.x
    assert not hasattr(point, "__dict__")


def test_values_are_copied_replaced_and_pickled() -> None:
    point = Point(x=1, marks=["a"])

    assert point.moved() == Point(x=2, marks=["a"])
    assert copy.copy(point) == copy.deepcopy(point) == pickle.loads(pickle.dumps(point)) == point


def test_each_instance_gets_a_default_of_its_own() -> None:
    assert Point(x=1).marks is not Point(x=1).marks


def test_fields_can_be_made_after_the_others_also_in_a_class_below() -> None:
    assert (Doubled(4).twice, Tripled(4, 12).twice, Tripled(4, thrice=12).thrice) == (8, 8, 12)


def test_wrong_arguments_are_named_as_in_any_constructor() -> None:
    wrong: Any = Point
    for _ in range(2):  # while the constructor is compiled, and after
        with pytest.raises(TypeError, match=r"Point\.__init__\(\) missing 1 required keyword-only argument: 'x'"):
            wrong(y=1)
        with pytest.raises(TypeError, match="unexpected keyword argument 'z'"):
            wrong(x=1, z=2)


def test_pydantic_reads_them() -> None:
    adapter = TypeAdapter(Point)

    assert adapter.validate_json('{"x": 3, "marks": ["m"]}') == Point(x=3, marks=["m"])
    assert adapter.dump_python(Point(x=3)) == {"x": 3, "y": 2, "marks": [], "note": ""}
