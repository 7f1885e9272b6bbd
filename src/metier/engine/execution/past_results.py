"""`results.json` in the run folder: the results so far, for scripts that summarize them. Built from the journal.

It is only written before a step that names the file, because most runs don't need it and the cost of a turn must not
grow with the run's history.
"""

import json
from collections.abc import Iterable
from typing import cast

from pydantic import JsonValue

from metier.decisions import ActionStep, find_invocation, read_failure
from metier.definitions.files.whole_file import replace_file
from metier.engine.entries.entry import Entry
from metier.engine.entries.step import StepFinished, StepStarted
from metier.engine.journal import read_entries
from metier.engine.services import Services
from metier.store.base import Store

FILE_NAME = "results.json"
_COUNTED_TOOLS = frozenset({"script_run"})


async def update_results(run_id: str, actions: Iterable[ActionStep], services: Services) -> None:
    """Write the file if one of these actions names it."""
    path = services.run_folder / FILE_NAME
    if not any(_mentions(action.params, str(path)) for action in actions):
        return
    given: list[JsonValue] = []
    if services.given_results:
        given = cast("list[JsonValue]", json.loads(await services.store.get_blob(services.given_results)))
    results = [*given, *await build_results(await read_entries(services.store, run_id), services.store)]
    path.parent.mkdir(parents=True, exist_ok=True)
    text = json.dumps(results, ensure_ascii=False, indent=1) + "\n"
    replace_file(path, text.encode("utf-8", "surrogatepass"), is_private=False)


async def build_results(entries: Iterable[Entry], store: Store) -> list[JsonValue]:
    """List the last result of each step that did work as `{skill, result}`, or the reason that it has none."""
    names: dict[str, str] = {}
    results: dict[str, JsonValue] = {}
    for entry in entries:
        if isinstance(entry, StepStarted) and (name := _find_name(entry.action)):
            names[entry.step_id] = name
        elif isinstance(entry, StepFinished) and entry.step_id in names:
            # Moves a step that ran again to the end, where its last result belongs.
            results.pop(entry.step_id, None)
            results[entry.step_id] = {"skill": names[entry.step_id], **await _read_result(entry, store)}
    return list(results.values())


def _find_name(action: ActionStep) -> str:
    """Return the skill that a step works for; empty for steps that only read."""
    if find_invocation(action) is not None:
        return str(action.params.get("skill", ""))
    tool = str(action.params.get("tool", ""))
    if tool in _COUNTED_TOOLS:
        arguments = action.params.get("arguments")
        return str(arguments.get("skill_name", "")) if isinstance(arguments, dict) else ""
    return tool.partition(".")[0] if "." in tool else ""


async def _read_result(finished: StepFinished, store: Store) -> dict[str, JsonValue]:
    if finished.is_error:
        return read_failure(finished.text) or {"success": False, "message": finished.text}
    text = finished.text
    if finished.digest:
        text = (await store.get_blob(finished.digest)).decode("utf-8", "surrogatepass")
    try:
        answer: JsonValue = json.loads(text)
    except ValueError:
        return {"result": text}
    return {"result": answer["result"] if isinstance(answer, dict) and "result" in answer else answer}


def _mentions(value: JsonValue, text: str) -> bool:
    match value:
        case str():
            return text in value
        case list():
            return any(_mentions(item, text) for item in value)
        case dict():
            return any(_mentions(item, text) for item in value.values())
        case _:
            return False
