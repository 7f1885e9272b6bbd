"""A process that forks has built what its forks use."""

from metier.dataclass import complete_constructor, dataclass
from metier.engine.entries import RunStarted
from metier.testing.warm_process import warm_process
from metier.tools.files import snapshots


def test_a_warm_process_has_built_models_patterns_and_constructors() -> None:
    warm_process()

    assert RunStarted.__pydantic_complete__
    assert snapshots.Program.__init__.__qualname__ == "Program.__init__"


def test_a_class_whose_constructor_is_compiled_beforehand_is_the_same_class() -> None:
    @dataclass(frozen=True, slots=True, kw_only=True)
    class Pair:
        left: int
        right: int = 2

    complete_constructor(Pair)
    compiled = Pair.__init__
    complete_constructor(Pair)

    assert Pair.__init__ is compiled
    assert (Pair(left=1).left, Pair(left=1).right) == (1, 2)
