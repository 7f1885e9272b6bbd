"""Validation of a skill's inputs. Missing and invalid ones become a request for input. Pure."""

from collections.abc import Sequence
from typing import TYPE_CHECKING, cast

from msgspec import Struct
from pydantic import JsonValue

from metier.capabilities.contract import INPUT_TYPES, InputType, Schema, SkillContract
from metier.capabilities.protocol import InputRequest, MissingField
from metier.errors import UsageError
from metier.telemetry.excerpt import cut_end
from metier.tools.schemas import MAX_STEPS

if TYPE_CHECKING:
    from jsonschema.exceptions import ValidationError

_SHOWN_CHARACTERS = 300
_MAX_ERRORS = 10
_MAX_FOUND = 1_000
"""More than a form has fields, so every missing or invalid one is asked for."""


class InputCheck(Struct, frozen=True, kw_only=True):
    request: InputRequest | None
    """None if the inputs are complete and valid."""
    usable: dict[str, JsonValue]
    """The valid inputs: they need not be given again."""


def check_input_object(inputs: object) -> None:
    """Raise `UsageError` for inputs that are not a JSON object."""
    if isinstance(inputs, dict) and all(isinstance(name, str) for name in cast("dict[object, object]", inputs)):
        return
    shown = cut_end(repr(cast("object", inputs)), _SHOWN_CHARACTERS)
    raise UsageError(
        f"The inputs must be a dict with text keys, not {shown}",
        hint='Give them by name, as in {"text": "…"}',
    )


def check_inputs(
    inputs: dict[str, JsonValue],
    contract: SkillContract,
    *,
    asked: Sequence[MissingField] = (),
    secret: Sequence[str] = (),
) -> InputCheck:
    """Validate inputs by `input_schema`, `input_request_jsonschema` and `input_request_schema` of the contract.

    `asked` are the fields of an open request; a field of `input_request_schema` is required only in the answer to one.
    `secret` are inputs of an earlier turn whose values were not stored, so they are asked for again.
    """
    missing: dict[str, None] = {}
    wrong: dict[str, None] = {}
    errors: dict[str, None] = {}
    for schema in (contract.input_schema, contract.input_request_jsonschema, _build_answer_schema(contract, asked)):
        for error in _get_errors(inputs, schema):
            names = _missing_names(error)
            missing |= dict.fromkeys(names)
            if not names:
                wrong |= dict.fromkeys(_named_by(error))
                errors[f"{error.message[:_SHOWN_CHARACTERS]} (at {error.json_path})"] = None
    if not missing and not errors and not secret:
        return InputCheck(request=None, usable=inputs)
    usable = {name: value for name, value in inputs.items() if name not in wrong}
    # A repeated question has the same fields, without those that were answered.
    fields = {field.name: field for field in asked if field.name not in usable}
    for name in (*missing, *wrong):
        fields.setdefault(name, describe_field(name, contract, is_required=name in missing))
    for name in secret:
        fields.setdefault(name, describe_field(name, contract))
    request = InputRequest(
        message="Secrets are not stored between turns, give them again" if secret else "",
        missing_fields=tuple(fields.values()),
        errors=tuple(errors)[:_MAX_ERRORS],
    )
    return InputCheck(request=request, usable=usable)


def complete_request(request: InputRequest, contract: SkillContract) -> InputRequest:
    """Add choices, types and descriptions from the contract to fields that a skill asks for by name only."""
    fields = tuple(_complete_field(field, contract) for field in request.missing_fields)
    return request.model_copy(update={"missing_fields": fields})


def _complete_field(field: MissingField, contract: SkillContract) -> MissingField:
    # A description or a form that the skill gives itself overrides the contract's.
    known = describe_field(field.name, contract)
    has_form = field.json_schema is not None or field.enum or field.type not in ("string", known.type)
    added: dict[str, object] = {} if field.description else {"description": known.description}
    if not has_form:
        added |= {"type": known.type, "enum": known.enum, "json_schema": known.json_schema}
    declared = any(one.name == field.name for one in contract.interaction.input_request_schema)
    if declared and "required" not in field.model_fields_set:
        added["required"] = known.required
    return field.model_copy(update=added)


def _build_answer_schema(contract: SkillContract, asked: Sequence[MissingField]) -> Schema | None:
    """Return `input_request_schema` as a JSON Schema; None if the contract has none."""
    fields = contract.interaction.input_request_schema
    if not fields:
        return None
    properties: Schema = {field.name: describe_field(field.name, contract).schema_of_value for field in fields}
    declared = {field.name for field in fields}
    required: list[JsonValue] = [field.name for field in asked if field.required and field.name in declared]
    return {"type": "object", "properties": properties, "required": required}


def describe_field(name: str, contract: SkillContract, *, is_required: bool = False) -> MissingField:
    """Describe one input as the contract defines it. It's required if the contract or the caller says so."""
    schema = next(
        (
            found
            for known in (contract.input_schema, contract.input_request_jsonschema)
            if (found := _property(known, name))
        ),
        None,
    )
    declared = next((field for field in contract.interaction.input_request_schema if field.name == name), None)
    description = schema.get("description") if schema else None
    enum = schema.get("enum") if schema else None
    found = MissingField(
        name=name,
        type=_type_of(schema),
        description=description if isinstance(description, str) else "",
        required=is_required or _is_required(name, contract),
        enum=tuple(enum) if isinstance(enum, list) else (),
        json_schema=schema,
    )
    if declared is None:
        return found
    field = MissingField.from_contract(declared)
    added = {"json_schema": schema, "required": is_required or field.required, "enum": field.enum or found.enum}
    return field.model_copy(update={**added, "description": field.description or found.description})


def _is_required(name: str, contract: SkillContract) -> bool:
    lists = [known.get("required") for known in (contract.input_schema, contract.input_request_jsonschema) if known]
    return any(isinstance(names, list) and name in names for names in lists)


def build_input_schema(contract: SkillContract) -> Schema:
    """Build the input schema of the skill's tool. Nothing is required: the skill asks for what is missing."""
    properties: Schema = {
        field.name: MissingField.from_contract(field).schema_of_value
        for field in contract.interaction.input_request_schema
    }
    for known in (contract.input_request_jsonschema, contract.input_schema):
        found = known.get("properties") if known else None
        # A full schema replaces a field of the same name, because it says more about the value.
        properties |= found if isinstance(found, dict) else {}
    return {"type": "object", "properties": properties}


def _get_errors(inputs: dict[str, JsonValue], schema: Schema | None) -> "list[ValidationError]":
    if schema is None:
        return []
    # Imported here: it takes 70 ms, and not every skill has a schema.
    from jsonschema.exceptions import ValidationError

    from metier.tools.schema_validator import BoundedValidator

    found = BoundedValidator(schema).list_errors(inputs, most=_MAX_FOUND, steps=MAX_STEPS)
    # The check took too many steps: inputs that could not be checked are not passed on.
    if found.failure:
        return [ValidationError(found.failure)]
    return sorted(found.errors, key=lambda error: (list(map(str, error.absolute_path)), error.message))


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
