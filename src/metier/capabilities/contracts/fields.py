"""Take typed values out of the fields of a contract, and write down what is not as it should be."""

from collections.abc import Sequence
from pathlib import PurePosixPath
from typing import Self, cast

from pydantic import JsonValue

from metier.capabilities.contracts.contract import Schema
from metier.capabilities.contracts.schema_node import find_schema_fault, json_value
from metier.dataclass import dataclass
from metier.definitions.nearest import hint_nearest
from metier.definitions.text.fields import Fields
from metier.definitions.text.yaml_text import Entry, Mapping
from metier.definitions.text.yaml_text import Sequence as ListNode

_TRUTH = {"true": True, "yes": True, "on": True, "false": False, "no": False, "off": False}


@dataclass(frozen=True, slots=True)
class ContractFields:
    """The fields of one mapping. What is wrong is an error or a warning, as `fields` is strict or not."""

    fields: Fields

    def text(self, key: str) -> str:
        return self.fields.text(key) or ""

    def word[Word: str](self, key: str, allowed: Sequence[Word], *, default: Word) -> Word:
        """One of a fixed set of words, in any case."""
        entry = self.fields.find(key)
        if entry is None:
            return default
        written = self.text(key).lower()
        if written in allowed:
            return cast("Word", written)  # just compared
        hint = hint_nearest(written, allowed) or f"Write one of: {', '.join(allowed)}"
        self.fields.deviate("contract_value", f"Field {key!r} cannot be {written!r}", line=entry.line, hint=hint)
        return default

    def words[Word: str](self, key: str, allowed: Sequence[Word]) -> tuple[Word, ...]:
        """Some of a fixed set of words; `none` is none of them."""
        entry = self.fields.find(key)
        found: list[Word] = []
        for text in self.fields.texts(key) or ():
            word = text.lower()
            if word in allowed:
                found.append(cast("Word", word))  # just compared
            elif word != "none":
                hint = hint_nearest(word, allowed) or f"Known are: {', '.join(allowed)}"
                line = entry.line if entry else None
                self.fields.deviate("contract_value", f"Field {key!r} cannot hold {text!r}", line=line, hint=hint)
        return tuple(dict.fromkeys(found))

    def number(self, key: str, *, low: float, high: float, default: float) -> float:
        """Within its bounds; a lenient reader takes the bound for what lies beyond it."""
        entry = self.fields.find(key)
        if entry is None:
            return default
        value = json_value(entry.value)
        number = None if isinstance(value, bool) or not isinstance(value, int | float) else float(value)
        if number is not None and low <= number <= high:
            return number
        message = f"Field {key!r} must be a number from {low:g} to {high:g}"
        self.fields.deviate("contract_value", message, line=entry.line)
        return default if number is None else min(max(number, low), high)

    def whole(self, key: str, *, low: int, high: int, default: int) -> int:
        """The same for a whole number; a fraction is a problem."""
        value = self.number(key, low=low, high=high, default=default)
        entry = self.fields.find(key)
        if entry is not None and not value.is_integer():
            message = f"Field {key!r} must be a whole number from {low} to {high}"
            self.fields.deviate("contract_value", message, line=entry.line)
        return int(value)

    def choices(self, key: str) -> tuple[JsonValue, ...]:
        """The values of a list, of whatever types."""
        entry = self.fields.find(key)
        if entry is None:
            return ()
        values = json_value(entry.value)
        if not isinstance(values, list):
            self.fields.deviate("contract_shape", f"Field {key!r} must be a list", line=entry.line)
            return ()
        return tuple(values)

    def truth(self, key: str, *, default: bool) -> bool:
        entry = self.fields.find(key)
        if entry is None:
            return default
        written = self.text(key).lower()
        if written not in _TRUTH:
            message = f"Field {key!r} must be true or false"
            self.fields.deviate("contract_value", message, line=entry.line)
        return _TRUTH.get(written, default)

    def paths(self, key: str) -> tuple[str, ...]:
        """Relative paths that stay where they are."""
        entry = self.fields.find(key)
        found: list[str] = []
        for text in self.fields.texts(key) or ():
            path = PurePosixPath(text)
            if path.is_absolute() or ".." in path.parts or "\\" in text:
                message = f"Path {text!r} in {key!r} must be relative and lead nowhere else"
                self.fields.deviate("contract_path", message, line=entry.line if entry else None)
            else:
                found.append(str(path))
        return tuple(found)

    def schema(self, key: str) -> Schema | None:
        entry = self.fields.find(key)
        if entry is None:
            return None
        fault = find_schema_fault(entry.value)
        if fault is not None:
            message = f"Field {key!r} is not a JSON Schema that can be used: {fault.why}"
            self.fields.deviate("contract_schema", message, line=fault.line)
            return None
        schema = json_value(entry.value)
        return schema if isinstance(schema, dict) else None

    def inner(self, key: str, known: Sequence[str]) -> Self | None:
        """The fields of the mapping below a key; nothing, and a problem, where it is none."""
        entry = self.fields.find(key)
        if entry is None:
            return None
        if not isinstance(entry.value, Mapping):
            hint = f"Write below it: {', '.join(known)}"
            self.fields.deviate("contract_shape", f"Field {key!r} must be a mapping", line=entry.line, hint=hint)
            return None
        return self._below(entry.value, known)

    def each(self, key: str, known: Sequence[str], *, alone: str) -> list[Self]:
        """The fields of each item of a list; an item of one word means that word as `alone`."""
        entry = self.fields.find(key)
        if entry is None:
            return []
        if not isinstance(entry.value, ListNode):
            self.fields.deviate("contract_shape", f"Field {key!r} must be a list", line=entry.line)
            return []
        found: list[Self] = []
        for item in entry.value.items:
            if isinstance(item, ListNode):
                self.fields.deviate("contract_shape", f"An item of {key!r} must be a mapping", line=item.line)
                continue
            mapping = item if isinstance(item, Mapping) else Mapping((Entry(alone, item.line, item),), item.line)
            below = self._below(mapping, known)
            name = below.text(alone)
            if not name:
                self.fields.deviate("contract_shape", f"An item of {key!r} has no {alone!r}", line=item.line)
            elif any(name == other.text(alone) for other in found):
                message = f"Two items of {key!r} have the {alone} {name!r}"
                self.fields.deviate("contract_shape", message, line=item.line)
            else:
                found.append(below)
        return found

    def check_keys(self, known: Sequence[str]) -> None:
        for entry in self.fields.mapping.entries:
            if entry.key not in known:
                hint = hint_nearest(entry.key, known) or f"Known are: {', '.join(known)}"
                message = f"A contract has no field {entry.key!r}"
                self.fields.deviate("contract_key", message, line=entry.line, hint=hint)

    def _below(self, mapping: Mapping, known: Sequence[str]) -> Self:
        fields = Fields(mapping, file=self.fields.file, strict=self.fields.strict, problems=self.fields.problems)
        below = type(self)(fields)
        below.check_keys(known)
        return below
