"""Targets of delegation: the agents and task definitions of the workspace, and their description for the model."""

import json

from msgspec.structs import replace

from metier.approval.judge import RUN_TASK
from metier.approval.matchers import read_value
from metier.context.control import choose_specs
from metier.definitions.names import fold_id
from metier.definitions.task import TaskDefinition
from metier.messages import ToolSpec
from metier.tools.schemas import SchemaCheck
from metier.values import JsonValue, StoredValue

MAX_DESCRIBED = 40
"""Number above which only names are described to the model."""
DESCRIPTION_CHARACTERS = 160


class InputSpec(StoredValue, frozen=True, kw_only=True):
    """One input of a task."""

    name: str
    description: str = ""
    default: str | None = None
    value_schema: dict[str, JsonValue] | None = None


class Partner(StoredValue, frozen=True, kw_only=True):
    id: str
    name: str = ""
    description: str = ""
    inputs: tuple[InputSpec, ...] = ()


class Partners(StoredValue, frozen=True, kw_only=True):
    agents: tuple[Partner, ...] = ()
    tasks: tuple[Partner, ...] = ()

    def find_agent(self, name: str) -> Partner | None:
        return next((agent for agent in self.agents if fold_id(agent.id) == fold_id(name)), None)

    def find_task(self, name: str) -> Partner | None:
        return next((task for task in self.tasks if fold_id(task.id) == fold_id(name)), None)

    def specs(self, control: tuple[ToolSpec, ...]) -> tuple[ToolSpec, ...]:
        """Return the tools for reaching them; empty without partners."""
        found: list[ToolSpec] = []
        for spec in choose_specs(control, ("delegate", RUN_TASK)):
            known = self.agents if spec.name == "delegate" else self.tasks
            if known:
                listed = "\n".join(_describe(partner, index) for index, partner in enumerate(known))
                found.append(replace(spec, description=f"{spec.description}\n{listed}"))
        return tuple(found)


def read_inputs(task: TaskDefinition) -> tuple[InputSpec, ...]:
    found: list[InputSpec] = []
    for item in task.inputs:
        schema = read_value(item.schema) if item.schema is not None else None
        found.append(
            InputSpec(
                name=item.name,
                description=item.description,
                default=item.default,
                value_schema=schema if isinstance(schema, dict) else None,
            )
        )
    return tuple(found)


def fill_inputs(declared: tuple[InputSpec, ...], given: dict[str, JsonValue]) -> tuple[dict[str, str], list[str]]:
    """Return the inputs of a task as texts with defaults, and all problems of them."""
    filled: dict[str, str] = {}
    names = [item.name for item in declared]
    wrong = [f"there is no input {name!r}" for name in given if name not in names]
    for item in declared:
        if item.name not in given and item.default is None:
            wrong.append(f"input {item.name!r} is missing" + (f" ({item.description})" if item.description else ""))
            continue
        value = given.get(item.name, item.default)
        filled[item.name] = value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
        if problem := _get_wrong_value(item, value):
            wrong.append(f"input {item.name!r}: {problem}")
    return filled, wrong


def _get_wrong_value(item: InputSpec, value: JsonValue) -> str:
    """Return the problem of a value; a text is parsed if the schema wants another type."""
    if item.value_schema is None:
        return ""
    check = SchemaCheck(item.name, item.value_schema)
    problem = check.get_error(value)
    if not problem or not isinstance(value, str):
        return problem
    try:
        return check.get_error(json.loads(value))
    except (ValueError, RecursionError):
        return problem


def _describe(partner: Partner, index: int) -> str:
    if index >= MAX_DESCRIBED:
        return f"- {partner.id}"
    said = " ".join(partner.description.split())[:DESCRIPTION_CHARACTERS]
    inputs = ", ".join(item.name if item.default is None else f"{item.name}?" for item in partner.inputs)
    return f"- {partner.id}{f'({inputs})' if inputs else ''}{f': {said}' if said else ''}"
