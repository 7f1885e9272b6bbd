"""Definitions of the workspace: tasks, agents, skills."""

from pathlib import Path as FilePath
from typing import Annotated, Literal

from anyio.to_thread import run_sync
from fastapi import APIRouter, Path, Request
from msgspec.structs import replace
from pydantic import Field, JsonValue
from starlette.responses import Response

from metier.definitions.agent import load_agent
from metier.definitions.names import fold_id
from metier.definitions.task import TaskDefinition, load_task
from metier.providers.model_names import qualify_model_name
from metier.runtime.child_runs import request_task
from metier.runtime.documents import build_input_schema, task_as_json
from metier.runtime.host import Host
from metier.runtime.workspace.lookup import list_definitions
from metier.runtime.workspace.skill_catalog import get_all_skills, get_skills
from metier.runtime.workspace.tasks import get_task
from metier.server.api.bodies import AgentItem, Page, RunItem, SkillItem, TaskDetails, TaskItem, answer, answer_page
from metier.server.api.runs import RunLimits, start_once, use_limits
from metier.server.idempotency import Document, Key, Once, run_once
from metier.server.problems import HttpProblem
from metier.server.state import State
from metier.skills.skill_trust import is_trusted

router = APIRouter(tags=["definitions"])

type TaskName = Annotated[str, Path(max_length=300, description="The ID of a task.")]


class StartTask(RunLimits):
    inputs: Annotated[dict[str, JsonValue], Field(description="The inputs, by name; see `input_schema`.")] = {}  # noqa: RUF012 - pydantic copies it
    agent: Annotated[str, Field(max_length=200, description="The agent for steps that name none.")] = ""
    model: Annotated[str, Field(max_length=200)] = ""
    mode: Annotated[Literal["live", "dry_run"], Field(description="`dry_run` only plans.")] = "live"


@router.get("/tasks", response_model=Page[TaskItem])
async def list_tasks(state: State) -> Response:
    """List the task definitions of the workspace, including invalid ones with their problems."""
    return answer_page(state, await run_sync(_read_tasks, state.host))


# Before the route of a task: ids contain slashes, so its path would match this address too.
@router.get("/tasks/{task:path}/input-schema", response_model=dict[str, JsonValue])
async def get_input_schema(state: State, task: TaskName) -> Response:
    """Return the JSON Schema of a task's inputs, for forms."""
    return answer(state, build_input_schema(await run_sync(find_task, state.host, task)))


@router.post("/tasks/{task:path}/runs", status_code=201, response_model=RunItem)
async def start_task(request: Request, state: State, task: TaskName, wanted: StartTask, key: Key = "") -> Response:
    """Start a run of a task with these inputs."""

    async def start(once: Once) -> Document:
        await run_sync(find_task, state.host, task)
        host = use_limits(state, wanted).host
        model = qualify_model_name(wanted.model, provider=wanted.provider)
        run = request_task(host, task, wanted.inputs, agent=wanted.agent, model=model)
        run = replace(run, mode=wanted.mode)
        return await start_once(request, once, run, wanted)

    return answer(state, await run_once(request, key, start), status=201)


@router.get("/tasks/{task:path}", response_model=TaskDetails)
async def show_task(state: State, task: TaskName) -> Response:
    """Return a task with its steps and the JSON Schema of its inputs."""
    found = await run_sync(find_task, state.host, task)
    return answer(state, {**task_as_json(found), "input_schema": build_input_schema(found)})


@router.get("/agents", response_model=Page[AgentItem])
async def list_agents(state: State) -> Response:
    """List the agents of the workspace, including invalid ones with their problems."""
    return answer_page(state, await run_sync(_read_agents, state.host))


@router.get("/skills", response_model=Page[SkillItem])
async def list_skills(state: State) -> Response:
    """List the installed skills. New runs have those that are `active`."""
    return answer_page(state, await run_sync(_read_skills, state.host))


def find_task(host: Host, task_id: str) -> TaskDefinition:
    """Return a task. Raises `HttpProblem` if there is none, `ConfigError` if it is invalid."""
    if fold_id(task_id) not in list_definitions(host.workspace, "task"):
        raise HttpProblem(404, "task_unknown", f"No task is called {task_id!r}", hint="GET /api/v1/tasks lists them")
    return get_task(host, task_id)


def _read_tasks(host: Host) -> list[Document]:
    listed: list[Document] = []
    for found in list_definitions(host.workspace, "task").values():
        reading = load_task(FilePath(found.path), id=found.id, within=found.within)
        problems: list[JsonValue] = [problem.render() for problem in reading.problems]
        if reading.task is None:
            listed.append({"id": found.id, "loaded": False, "problems": problems})
        else:
            schema = build_input_schema(reading.task)
            listed.append({**task_as_json(reading.task), "loaded": True, "problems": problems, "input_schema": schema})
    return listed


def _read_agents(host: Host) -> list[Document]:
    listed: list[Document] = []
    default = fold_id(host.settings.runtime.agent or "")
    for key, found in sorted(list_definitions(host.workspace, "agent").items()):
        reading = load_agent(FilePath(found.path), id=found.id, within=found.within)
        agent = reading.agent
        listed.append(
            {
                "id": found.id,
                "loaded": agent is not None,
                "is_default": key == default,
                "name": agent.name if agent else "",
                "description": agent.description if agent else "",
                "model": agent.model if agent else None,
                "profile": (agent.profile or "guarded") if agent else None,
                "problems": [problem.render() for problem in reading.problems],
            }
        )
    return listed


def _read_skills(host: Host) -> list[Document]:
    active = {str(package.folder) for package in get_skills(host).packages}
    return [
        {
            "name": package.definition.name,
            "description": package.definition.description,
            "version": package.definition.version,
            "source": package.source,
            "trusted": is_trusted(package),
            "active": str(package.folder) in active,
        }
        for package in sorted(get_all_skills(host).packages, key=lambda each: each.definition.name)
    ]
