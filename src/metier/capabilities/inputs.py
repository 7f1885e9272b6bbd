"""Are the inputs of a skill there and right? What is missing or wrong becomes a request for input. Pure."""

from collections.abc import Collection
from typing import TYPE_CHECKING, cast

from pydantic import JsonValue

from metier.capabilities.contracts.contract import INPUT_TYPES, InputType, Schema, SkillContract
from metier.capabilities.protocol import InputRequest, MissingField
from metier.dataclass import dataclass

if TYPE_CHECKING:
    from jsonschema.exceptions import ValidationError

_SHOWN_CHARACTERS = 300
_MAX_ERRORS = 10


@dataclass(frozen=True, slots=True, kw_only=True)
class InputCheck:
    request: InputRequest | None
    """Nothing when everything is there."""
    usable: dict[str, JsonValue]
    """The inputs without those that are wrong: they need not be given again."""


def check_inputs(inputs: dict[str, JsonValue], contract: SkillContract, *, asked: Collection[str] = ()) -> InputCheck:
    """By the schemas of the contract: the inputs of the skill, the form of its request, and the fields it may ask for.

    `asked` are the fields of an open request: only of an answer to one is a field required that the skill asks for.
    """
    missing: dict[str, None] = {}
    wrong: dict[str, None] = {}
    errors: dict[str, None] = {}
    for schema in (contract.input_schema, contract.input_request_jsonschema, _build_answer_schema(contract, asked)):
        for error in _find_errors(inputs, schema):
            names = _missing_names(error)
            missing |= dict.fromkeys(names)
            if not names:
                wrong |= dict.fromkeys(_named_by(error))
                errors[f"{error.message[:_SHOWN_CHARACTERS]} (at {error.json_path})"] = None
    if not missing and not errors:
        return InputCheck(request=None, usable=inputs)
    usable = {name: value for name, value in inputs.items() if name not in wrong}
    # What was asked before and need not be given is asked for still.
    names = dict.fromkeys((*missing, *wrong, *(name for name in asked if name not in usable)))
    fields = tuple(describe_field(name, contract) for name in names)
    request = InputRequest(missing_fields=fields, errors=tuple(errors)[:_MAX_ERRORS])
    return InputCheck(request=request, usable=usable)


def _build_answer_schema(contract: SkillContract, asked: Collection[str]) -> Schema | None:
    """`input_request_schema` as a JSON Schema, each field as a caller is asked for it; nothing where there is none."""
    fields = contract.interaction.input_request_schema
    if not fields:
        return None
    properties: Schema = {field.name: describe_field(field.name, contract).schema_of_value for field in fields}
    required: list[JsonValue] = [field.name for field in fields if field.required and field.name in asked]
    return {"type": "object", "properties": properties, "required": required}


def describe_field(name: str, contract: SkillContract) -> MissingField:
    """What the contract says about one input."""
    schema = next(
        (
            found
            for known in (contract.input_schema, contract.input_request_jsonschema)
            if (found := _property(known, name))
        ),
        None,
    )
    declared = next((field for field in contract.interaction.input_request_schema if field.name == name), None)
    if declared is not None:
        return MissingField.from_contract(declared).model_copy(update={"json_schema": schema})
    description = schema.get("description") if schema else None
    return MissingField(
        name=name,
        type=_type_of(schema),
        description=description if isinstance(description, str) else "",
        json_schema=schema,
    )


def build_input_schema(contract: SkillContract) -> Schema:
    """What a model is told to call the skill with. Nothing is required: what is missing is asked for."""
    properties: Schema = {
        field.name: MissingField.from_contract(field).schema_of_value
        for field in contract.interaction.input_request_schema
    }
    for known in (contract.input_request_jsonschema, contract.input_schema):
        found = known.get("properties") if known else None
        properties |= found if isinstance(found, dict) else {}
    return {"type": "object", "properties": properties}


def _find_errors(inputs: dict[str, JsonValue], schema: Schema | None) -> "list[ValidationError]":
    if schema is None:
        return []
    from jsonschema import Draft202012Validator
    from jsonschema.exceptions import ValidationError
    from referencing import Registry
    from referencing.exceptions import Unresolvable

    # An empty registry retrieves nothing: a schema must not make the process fetch an address.
    validator = Draft202012Validator(schema, registry=Registry())
    try:
        found = cast("list[ValidationError]", list(validator.iter_errors(inputs)))  # pyright: ignore[reportUnknownMemberType]  open stubs
    except Unresolvable as unresolvable:
        return [ValidationError(f"the schema refers to {unresolvable.ref!r}, which is not inside it")]
    except RecursionError:
        return [ValidationError("it is nested too deeply")]
    return sorted(found, key=lambda error: (list(map(str, error.absolute_path)), error.message))


def _missing_names(error: "ValidationError") -> list[str]:
    """Of a top-level `required`: the names that are not there."""
    if error.validator != "required" or error.absolute_path:
        return []
    wanted, given = cast("list[str]", error.validator_value), cast("dict[str, object]", error.instance)
    return [name for name in wanted if name not in given]


def _named_by(error: "ValidationError") -> list[str]:
    path = list(error.absolute_path)
    if path:
        return [str(path[0])]
    if error.validator == "additionalProperties":
        known = cast("dict[str, object]", cast("dict[str, object]", error.schema).get("properties", {}))
        return [name for name in cast("dict[str, object]", error.instance) if name not in known]
    return []


def _property(schema: Schema | None, name: str) -> Schema | None:
    properties = schema.get("properties") if schema else None
    found = properties.get(name) if isinstance(properties, dict) else None
    return found if isinstance(found, dict) else None


def _type_of(schema: Schema | None) -> InputType:
    written = schema.get("type") if schema else None
    for word in INPUT_TYPES:
        if word == written:
            return word
    return "string"
