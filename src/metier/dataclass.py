"""`dataclass` for values that never change, made without compiling six functions for each class.

The standard decorator writes and compiles the source of every method when a module is imported: a third of the
processor time of a short command. Here frozen classes with slots share one comparison, hash, text and guard, and the
constructor is compiled when the first instance is made. The rest is the standard decorator's work, and a class
behaves as one of its classes does: a test compares them.
"""

import dataclasses
from collections.abc import Callable, Iterable
from operator import attrgetter
from reprlib import recursive_repr
from typing import TYPE_CHECKING, Any

__all__ = ["complete_constructor", "dataclass"]

if TYPE_CHECKING:
    from dataclasses import dataclass
else:

    def dataclass(
        cls: type | None = None,
        /,
        *,
        frozen: bool = False,
        slots: bool = False,
        kw_only: bool = False,
        **options: object,
    ) -> Callable:
        if not (frozen and slots) or options:
            return dataclasses.dataclass(cls, frozen=frozen, slots=slots, kw_only=kw_only, **options)

        def build(plain: type) -> type:
            # The standard decorator would write the signature there, and inspect the class for it.
            plain.__doc__ = plain.__doc__ or plain.__name__
            return _complete(
                dataclasses.dataclass(init=False, repr=False, eq=False, slots=True, kw_only=kw_only)(plain)
            )

        return build


def _complete(cls: Any) -> Any:  # noqa: ANN401 - a class, which no type describes while it is built
    fields = dataclasses.fields(cls)
    cls.__compared__ = _build_reader(field.name for field in fields if field.compare)
    for name, method in _METHODS.items():
        if cls.__dict__.get(name) is None:  # a class that has `__eq__` has `__hash__ = None`
            setattr(cls, name, method)
    return cls


def _build_reader(names: Iterable[str]) -> Callable[[object], object]:
    found = tuple(names)
    return staticmethod(attrgetter(*found) if found else _read_nothing)


def _read_nothing(_value: object) -> tuple[()]:
    return ()


def _compile_constructor(cls: Any) -> Callable[..., None]:  # noqa: ANN401
    """What the standard decorator writes, with the setters of the slots instead of `object.__setattr__`."""
    known: dict[str, Any] = {"missing": dataclasses.MISSING}
    parameters: dict[bool, list[str]] = {False: [], True: []}
    lines: list[str] = []
    for field in dataclasses.fields(cls):
        name, value = field.name, field.name
        known[f"set_{name}"] = getattr(cls, name).__set__
        has_factory = field.default_factory is not dataclasses.MISSING
        known[f"default_{name}"] = field.default_factory if has_factory else field.default
        if has_factory:
            value = f"default_{name}() if {name} is missing else {name}" if field.init else f"default_{name}()"
        elif not field.init:
            value = f"default_{name}"
        if field.init:
            default = "=missing" if has_factory else f"=default_{name}"
            is_required = not has_factory and field.default is dataclasses.MISSING
            parameters[bool(field.kw_only)].append(name if is_required else name + default)
        if field.init or has_factory or field.default is not dataclasses.MISSING:
            lines.append(f"    set_{name}(self, {value})")
    if hasattr(cls, "__post_init__"):
        lines.append("    self.__post_init__()")
    named = ["*", *parameters[True]] if parameters[True] else []
    head = f"def __init__({', '.join(['self', *parameters[False], *named])}):"
    exec("\n".join([head, *(lines or ["    pass"])]), known)  # noqa: S102 - names of fields, no text from outside
    made = known["__init__"]
    made.__qualname__, made.__module__ = f"{cls.__qualname__}.__init__", cls.__module__
    return made


def _init(self: object, *args: object, **named: object) -> None:
    cls: Any = type(self)
    cls.__init__ = _compile_constructor(cls)
    cls.__init__(self, *args, **named)


def complete_constructor(cls: Any) -> None:  # noqa: ANN401
    """Compile the constructor now, if it is one that waits for its first instance."""
    if cls.__dict__.get("__init__") is _init:
        cls.__init__ = _compile_constructor(cls)


@recursive_repr()
def _repr(self: Any) -> str:  # noqa: ANN401
    shown = [f"{field.name}={getattr(self, field.name)!r}" for field in dataclasses.fields(self) if field.repr]
    return f"{type(self).__qualname__}({', '.join(shown)})"


def _eq(self: Any, other: Any) -> bool:  # noqa: ANN401
    if other.__class__ is not self.__class__:
        return NotImplemented
    return self is other or self.__compared__(self) == other.__compared__(other)


def _hash(self: Any) -> int:  # noqa: ANN401
    return hash(self.__compared__(self))


def _refuse_to_set(_self: object, name: str, _value: object) -> None:
    raise dataclasses.FrozenInstanceError(f"cannot assign to field {name!r}")


def _refuse_to_delete(_self: object, name: str) -> None:
    raise dataclasses.FrozenInstanceError(f"cannot delete field {name!r}")


def _get_state(self: Any) -> list[Any]:  # noqa: ANN401
    return [getattr(self, field.name) for field in dataclasses.fields(self)]


def _set_state(self: Any, state: list[Any]) -> None:  # noqa: ANN401
    for field, value in zip(dataclasses.fields(self), state, strict=True):
        object.__setattr__(self, field.name, value)


_METHODS: dict[str, Callable[..., object]] = {
    "__init__": _init,
    "__repr__": _repr,
    "__eq__": _eq,
    "__hash__": _hash,
    "__setattr__": _refuse_to_set,
    "__delattr__": _refuse_to_delete,
    "__getstate__": _get_state,
    "__setstate__": _set_state,
}
