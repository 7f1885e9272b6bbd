"""What skills cost in a request: whole runs through the engine, with the bodies that each vendor would be sent."""

import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

import pytest
from pydantic import JsonValue, TypeAdapter

from metier.approval.verdict import ALLOW, Verdict
from metier.context.operating import Subjects, build_operating
from metier.context.tokens import estimate_tokens
from metier.decisions import ActionStep
from metier.definitions.skills.sources import find_bundled_folder
from metier.engine.entries import RunStarted
from metier.engine.loop import Told, drive, hold_lease, open_log
from metier.engine.options import RuntimeOptions
from metier.engine.request_parts.skill_index import build_shelf
from metier.engine.services import Instructions, Services
from metier.engine.stopping import Stopper
from metier.ids import SystemClock, SystemIds
from metier.prompts.texts import load_text
from metier.providers.anthropic import wire as anthropic_wire
from metier.providers.base import ModelRequest
from metier.providers.facts import load_facts
from metier.providers.gemini import wire as gemini_wire
from metier.providers.openai import chat_wire as openai_chat_wire
from metier.providers.openai import responses_wire as openai_responses_wire
from metier.providers.options import ModelOptions
from metier.providers.transcript import HistoryCache
from metier.skills.activation import activate, build_roots, find_packages
from metier.skills.options import SkillsOptions
from metier.skills.package import SkillPackage
from metier.store.base import RunRow
from metier.store.sqlite.store import open_sqlite_store
from metier.telemetry.redaction import build_redactor
from metier.telemetry.sinks import Cleaner, EventWriter, RunScope
from metier.testing.scripted import ScriptedProvider, ToolCall, calls
from metier.tools.effects import Effect
from metier.tools.scripts.catalog import ScriptCatalog
from metier.tools.scripts.runner import ScriptRunner, default_environments
from metier.tools.scripts.tools import build_script_tools
from metier.tools.toolbox import Toolbox
from metier.tools.toolsets.loader import load_toolsets

pytestmark = pytest.mark.anyio

TASK = "Is the exchange open? Then greet everybody."
BODY: TypeAdapter[JsonValue] = TypeAdapter(JsonValue)
FACTS = load_facts().find("openai", "no-such-model")

FIRST: Mapping[tuple[str, ...], int] = {
    (): 999,
    ("kalshi-markets",): 2_112,
    ("kalshi-markets", "hello-extended"): 2_585,
}
"""Tokens of the dearest vendor's body as measured; a tenth more is allowed before somebody has to look."""
LAST: Mapping[tuple[str, ...], int] = {("kalshi-markets",): 2_970, ("kalshi-markets", "hello-extended"): 3_910}

WIRES: Mapping[str, Callable[[ModelRequest], bytes]] = {
    "anthropic": lambda request: anthropic_wire.build_body(request, FACTS, HistoryCache(), stream=False),
    "gemini": lambda request: gemini_wire.build_body(request, FACTS, HistoryCache()),
    "openai chat": lambda request: openai_chat_wire.build_body(
        request, FACTS, HistoryCache(), stream=False, own_server=True
    ),
    "openai responses": lambda request: openai_responses_wire.build_body(request, FACTS, HistoryCache(), stream=False),
}


class Permissive:
    def judge(self, action: ActionStep, *, skill: str) -> Verdict:
        del action, skill
        return ALLOW

    def effect(self, action: ActionStep) -> Effect:
        del action
        return "read"


class Nowhere:
    def write(self, record: object) -> None:
        del record

    def close(self) -> None:
        pass


@dataclass(frozen=True)
class Cost:
    """Estimated tokens of whole bodies, braces and quotes counted in, by vendor."""

    first: dict[str, int]
    """Of the first request: the skills are in the catalog."""
    last: dict[str, int]
    """Of the last request: every skill is disclosed."""
    requests: list[ModelRequest]


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


async def test_request_without_skills_stays_far_below_two_thousand_tokens(tmp_path: Path) -> None:
    cost = await measure(tmp_path, ())

    assert max(cost.last.values()) < 2_000
    assert max(cost.first.values()) <= FIRST[()] * 1.1, cost.first


async def test_request_with_the_market_skill_stays_below_three_thousand_tokens(tmp_path: Path) -> None:
    cost = await measure(tmp_path, ("kalshi-markets",))

    assert max(cost.last.values()) < 3_000
    assert max(cost.first.values()) <= FIRST["kalshi-markets",] * 1.1, cost.first
    assert max(cost.last.values()) <= LAST["kalshi-markets",] * 1.1, cost.last


async def test_request_with_both_skills_stays_below_five_thousand_tokens(tmp_path: Path) -> None:
    both = ("kalshi-markets", "hello-extended")
    cost = await measure(tmp_path, both)

    assert max(cost.last.values()) < 5_000
    assert max(cost.first.values()) <= FIRST[both] * 1.1, cost.first
    assert max(cost.last.values()) <= LAST[both] * 1.1, cost.last


async def test_no_line_of_a_script_is_ever_in_a_request(tmp_path: Path) -> None:
    cost = await measure(tmp_path, ("kalshi-markets", "hello-extended"))
    sent = "\n".join(_texts(BODY.validate_json(WIRES["anthropic"](request))) for request in cost.requests)
    said = "\n".join(file.read_text() for file in find_bundled_folder().glob("*/SKILL.md"))
    code = [
        line.strip()
        for pattern in ("kalshi-markets/scripts/*.py", "hello-extended/*/*.py")
        for file in find_bundled_folder().glob(pattern)
        for line in file.read_text().splitlines()
    ]

    # Short lines (`try:`, `)`) are words of any text; a line that the instructions quote is theirs to show.
    lines = {line for line in code if len(line) > 15 and line not in said}
    assert len(lines) > 500
    assert [line for line in lines if line in sent] == []


async def measure(folder: Path, names: tuple[str, ...]) -> Cost:
    packages = _activate(folder, names)
    provider = ScriptedProvider(
        *(calls(ToolCall("use_skill", {"skill": name})) for name in names),
        calls(ToolCall("finish", {"result": "Done"})),
    )
    toolsets = await load_toolsets(packages, os.environ)
    try:
        runner = ScriptRunner(environments=default_environments(os.environ, workspace=Path.cwd()), environ=os.environ)
        scripts = build_script_tools(ScriptCatalog(packages), runner) if packages else ()
        await _run(folder, provider, packages=packages, toolbox=Toolbox([*scripts, *toolsets.tools]))
    finally:
        await toolsets.aclose()
    assert provider.left == 0
    return Cost(_count(provider.requests[0]), _count(provider.requests[-1]), provider.requests)


async def _run(
    folder: Path, provider: ScriptedProvider, *, packages: tuple[SkillPackage, ...], toolbox: Toolbox
) -> None:
    store, clock, ids = await open_sqlite_store(folder / "state.db"), SystemClock(), SystemIds()
    run_id, now = ids.run_id(clock.now()), clock.now()
    subjects = Subjects(tools=toolbox.names(), has_skills=bool(packages))
    services = Services(
        store=store,
        provider=provider,
        facts=load_facts(),
        policy=Permissive(),
        tools=toolbox,
        shelf=build_shelf(packages, workspace=folder),
        instructions=Instructions(base="", safety=load_text("safety"), operating=build_operating(subjects, "open")),
        model=ModelOptions(),
        runtime=RuntimeOptions(),
        skills=SkillsOptions(),
        clock=clock,
        ids=ids,
        workspace=folder,
        run_folder=folder / "runs",
        clean=str,
        owner="test",
    )
    writer = EventWriter(
        Nowhere(),
        Cleaner(build_redactor()),
        scope=RunScope(run_id=run_id, trace_id=ids.trace_id()),
        clock=clock,
        ids=ids,
    )
    row = RunRow(run_id=run_id, context_id=run_id, status="pending", task=TASK, created_at=now, updated_at=now)
    await store.create_run(row)
    try:
        async with hold_lease(run_id, services) as lease:
            log = await open_log(lease, services, writer, entries=(), told=Told())
            started = RunStarted(
                task=TASK,
                provider=provider.name,
                model="model-1",
                context_id=run_id,
                trace_id=ids.trace_id(),
                workspace=str(folder),
            )
            await log.record(started)
            state = await drive(log, services, Stopper())
            assert state.status == "completed", state.failure
    finally:
        await store.close()


def _activate(folder: Path, names: tuple[str, ...]) -> tuple[SkillPackage, ...]:
    roots = build_roots(home=folder / "home", workspace=folder / "work", bundled=find_bundled_folder())
    return activate(find_packages(roots), names or "none").packages


def _count(request: ModelRequest) -> dict[str, int]:
    return {name: estimate_tokens(build(request).decode()) for name, build in WIRES.items()}


def _texts(value: JsonValue) -> str:
    """Every text in a body, as the model reads it."""
    match value:
        case str():
            return value
        case list():
            return "\n".join(_texts(item) for item in value)
        case dict():
            return "\n".join(_texts(item) for item in value.values())
        case _:
            return ""
