"""Placeholders `{{inputs.x}}` and `{{steps.<file>.result}}` in the bodies of a task.

They are replaced in one pass: values are data, so placeholders inside a value stay as they are.
"""

import re
from collections.abc import Mapping, Sequence
from typing import Literal

from msgspec import Struct

from metier.definitions.nearest import find_nearest, hint_nearest
from metier.definitions.problems import Problem, has_errors
from metier.definitions.task import TaskDefinition, TaskStep

_PATTERN = re.compile(r"\{\{\s*(?:inputs\.(?P<input>[A-Za-z0-9_.-]+)|steps\.(?P<step>[^{}]+?)\.result)\s*\}\}")
_MEANT = re.compile(r"\{\{\s*(?:inputs?|steps?)\b[^{}]*\}\}", re.IGNORECASE)
# `${{ … }}` belongs to other tools, such as GitHub's workflows.
_NAMED = re.compile(r"(?<!\$)\{\{\s*(?P<name>[A-Za-z0-9_.-]+)\s*\}\}")


class Placeholder(Struct, frozen=True):
    kind: Literal["input", "step"]
    name: str
    """The name of the input, or of the step as `name_step` returns it."""
    line: int
    """Line in the body, from 1."""


def fill_arguments(args: Sequence[str], values: Mapping[str, str]) -> tuple[str, ...]:
    """Replace `{name}` in the arguments of an entrypoint, in one pass."""
    pattern = re.compile("{(" + "|".join(values) + ")}")
    return tuple(pattern.sub(lambda match: values[match.group(1)], arg) for arg in args)


def name_step(file: str) -> str:
    """Return the name of a step in placeholders: its file name without `.md`."""
    return file[:-3] if file.lower().endswith(".md") else file


def list_placeholders(body: str) -> list[Placeholder]:
    """Return the valid placeholders in order."""
    return [_build(match, body) for match in _PATTERN.finditer(body)]


def check_placeholders(task: TaskDefinition) -> tuple[Problem, ...]:
    """Report placeholders without a value: undeclared inputs, and results of steps that are not earlier ones.

    An input without a placeholder is a warning, because the model only sees it in the list of inputs.
    """
    problems: list[Problem] = []
    inputs = [given.name for given in task.inputs]
    for index, step in enumerate(task.steps):
        earlier = [name_step(before.file.name) for before in task.steps[:index]]
        for placeholder in list_placeholders(step.body):
            known = inputs if placeholder.kind == "input" else earlier
            if placeholder.name not in known:
                problems.append(_missing(placeholder, step, task=task, known=known))
        problems += _list_misspelled(step)
        problems += _list_incomplete(step, inputs=inputs, earlier=earlier)
    # A misspelled placeholder already explains the unused input.
    return tuple(problems) if has_errors(problems) else (*problems, *_list_unused(task))


def _list_unused(task: TaskDefinition) -> list[Problem]:
    named = {each.name for step in task.steps for each in list_placeholders(step.body) if each.kind == "input"}
    return [
        Problem(
            severity="warning",
            code="unused_input",
            message=f"Input {given.name!r} is in no body of the task",
            file=str(task.steps[0].file),
            line=1,
            hint=f"Write {{{{inputs.{given.name}}}}} where it is meant; the model sees it among the inputs either way",
        )
        for given in task.inputs
        if given.name not in named
    ]


def render_body(body: str, *, inputs: Mapping[str, str], results: Mapping[str, str]) -> str:
    """Replace every placeholder. Raises `KeyError` for those that `check_placeholders` reports."""

    def replace(match: re.Match[str]) -> str:
        placeholder = _build(match, "")
        return inputs[placeholder.name] if placeholder.kind == "input" else results[placeholder.name]

    return _PATTERN.sub(replace, body)


def _build(match: re.Match[str], body: str) -> Placeholder:
    line = body.count("\n", 0, match.start()) + 1
    if match["input"] is not None:
        return Placeholder("input", match["input"], line)
    return Placeholder("step", name_step(match["step"]), line)


def _missing(placeholder: Placeholder, step: TaskStep, *, task: TaskDefinition, known: Sequence[str]) -> Problem:
    name = placeholder.name
    if placeholder.kind == "input":
        message = f"Input {name!r} is not declared"
        otherwise = "Declare it under 'inputs' in 'TASK.md'"
    elif any(name_step(other.file.name) == name for other in task.steps):
        message = f"Step {name!r} does not come before this one, so it has no result yet"
        otherwise = "Use the result of an earlier step"
    else:
        message = f"The task has no step {name!r}"
        otherwise = "Name the file of an earlier step"
    return Problem(
        severity="error",
        code=f"unknown_{placeholder.kind}",
        message=message,
        file=str(step.file),
        line=step.body_line + placeholder.line - 1,
        hint=hint_nearest(name, known) or otherwise,
    )


def _list_misspelled(step: TaskStep) -> list[Problem]:
    """Report text that looks like a misspelled placeholder."""
    return [
        Problem(
            severity="error",
            code="placeholder",
            message=f"{match[0]!r} is no placeholder",
            file=str(step.file),
            line=step.body_line + step.body.count("\n", 0, match.start()),
            hint="Write {{inputs.NAME}} or {{steps.FILE.result}}",
        )
        for match in _MEANT.finditer(step.body)
        if not _PATTERN.fullmatch(match[0])
    ]


def _list_incomplete(step: TaskStep, *, inputs: Sequence[str], earlier: Sequence[str]) -> list[Problem]:
    """Report names in double braces without `inputs.` or `steps.`, which reach the model as they are.

    A name that is neither an input nor a step is a warning: it may belong to a template of another tool.
    """
    forms = {name: f"{{{{steps.{name}.result}}}}" for name in earlier}
    forms |= {name: f"{{{{inputs.{name}}}}}" for name in inputs}
    problems: list[Problem] = []
    for match in _NAMED.finditer(step.body):
        if _MEANT.fullmatch(match[0]):
            continue
        name = match["name"].removesuffix(".result").rpartition(".")[2]
        nearest = find_nearest(name, forms)
        problem = Problem(
            severity="error" if name in forms else "warning",
            code="placeholder",
            message=f"{match[0]!r} is not a placeholder, so the model reads it literally",
            file=str(step.file),
            line=step.body_line + step.body.count("\n", 0, match.start()),
            hint=f"Did you mean {forms[nearest]}?" if nearest else "Write {{inputs.NAME}} or {{steps.FILE.result}}",
        )
        problems.append(problem)
    return problems
