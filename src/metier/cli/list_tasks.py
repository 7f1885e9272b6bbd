"""`agent task list`: list the workspace's tasks."""

from pathlib import Path
from typing import Any

import anyio

from metier.cli.shared.command_options import AsJson, Config, build_group, get_server_url
from metier.cli.shared.open_host import open_host
from metier.cli.shared.output import problem_as_json, warn_line, write_json, write_line
from metier.definitions.files.walk import FoundDefinition
from metier.definitions.problems import has_errors
from metier.definitions.task import load_task
from metier.runtime.host import Host
from metier.runtime.workspace.lookup import list_definitions, list_duplicates
from metier.telemetry.amounts import format_count

app = build_group()


def find_tasks(host: Host) -> list[FoundDefinition]:
    """List the workspace's tasks by ID."""
    return list(list_definitions(host.workspace, "task").values())


@app.command("list")
def list_tasks(*, as_json: AsJson = False, config: Config = None) -> int:
    """List tasks.

    Exit code 1: a task is invalid.
    """
    if url := get_server_url():
        return _list_on_server(url, as_json=as_json)
    host = open_host(config)
    tasks = find_tasks(host)
    duplicates = list_duplicates(host.workspace, "task")
    for problem in duplicates:
        warn_line(problem.render())
    if not tasks and not duplicates:
        write_json([]) if as_json else None
        warn_line("No tasks; create one in '.agent/tasks/<id>/TASK.md'")
        return 0
    # Imported late: checking a task loads the agents, skills, tools and rules that it refers to.
    from metier.runtime.validation import get_all_problems

    found = [(each.id, load_task(Path(each.path), id=each.id, within=each.within)) for each in tasks]
    problems = get_all_problems(host, "task")
    broken = {task_id for task_id, _ in found if has_errors(problems[task_id])}
    if as_json:
        write_json(
            [
                {
                    "id": task_id,
                    "name": reading.task.name if reading.task else "",
                    "description": reading.task.description if reading.task else "",
                    "steps": len(reading.task.steps) if reading.task else 0,
                    "inputs": [item.name for item in reading.task.inputs] if reading.task else [],
                    "loaded": reading.task is not None,
                    "usable": task_id not in broken,
                    "problems": [problem_as_json(problem) for problem in problems[task_id]],
                }
                for task_id, reading in found
            ]
        )
    for task_id, reading in [] if as_json else found:
        task = reading.task if task_id not in broken else None
        _write_task(task_id, None if task is None else len(task.steps), task.description if task is not None else "")
    return 1 if broken or duplicates else 0


def _list_on_server(url: str, *, as_json: bool) -> int:
    items: list[dict[str, Any]] = read_on_server(url, "/tasks")["items"]
    if as_json:
        write_json(items)
    for item in [] if as_json else items:
        is_usable = item["loaded"] and not item["problems"]
        _write_task(item["id"], len(item["steps"]) if is_usable else None, item.get("description", ""))
    return 0


def read_on_server(url: str, path: str) -> dict[str, Any]:
    """Read definitions of the server."""
    # Imported late: local commands need no HTTP client.
    from metier.cli.shared.server_client import open_server

    async def read() -> dict[str, Any]:
        async with open_server(url) as server:
            return await server.get(path)

    return anyio.run(read)


def _write_task(task_id: str, steps: int | None, description: str) -> None:
    if steps is None:
        write_line(f"{task_id}  is invalid; see `agent check tasks {task_id}`")
    else:
        write_line(f"{task_id}  {format_count(steps, 'step')}  {description}".rstrip())
