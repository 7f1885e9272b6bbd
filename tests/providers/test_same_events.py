"""The same task and replies in four wire formats produce the same events."""

from pathlib import Path

import pytest
from pydantic import JsonValue
from vendors import VENDORS, Vendor
from wire_server import WireServer

from metier.events.record import EventRecord
from metier.runtime.host import Host
from metier.runtime.requests import RunRequest
from metier.runtime.runs import open_runtime
from metier.settings.sections import Settings
from metier.skills.workspace_trust import MADE_HERE
from metier.telemetry.jsonl import FILE_NAME, read_events
from metier.tools.base import ToolContext, ToolInfo, ToolResult
from metier.values import dump_fields

pytestmark = pytest.mark.anyio

DIFFERENT_BY_NATURE = {"provider", "model", "meta", "prefix_hash", "request_hash", "bytes", "duration_ms", "cost_usd"}
OF_THE_PROMPT = {"layers", "allocated_prompt_tokens"}
"""Each family of models has instructions of its own."""


class Answers:
    """A tool with a constant answer."""

    def __init__(self, name: str) -> None:
        self.info = ToolInfo(
            id=f"test:{name}",
            name=name,
            description="Look something up.",
            category="custom",
            input_schema={"type": "object"},
            risk="low",
            effect="read",
        )

    async def execute(self, arguments: dict[str, JsonValue], context: ToolContext) -> ToolResult:
        return ToolResult(ok=True, output="nothing special")


PACK = {
    ".agent/agents/checker/AGENT.md": "---\nname: C\ntools: [Read, notes.search]\nskills: [greeter]\n---\nCheck.\n",
    "skills/greeter/SKILL.md": "---\nname: greeter\ndescription: Greet somebody.\n---\nSay hello.\n",
    ".agent/policy.yaml": "tool_approvals:\n  rules:\n    - tool: Read\n      allow: true\n",
    "context/system_prompt.md": "Be brief.\n",
    "context/soul.json": '{"tone": "dry"}\n',
}


async def run(
    vendor: Vendor, server: WireServer, folder: Path, *, pack: dict[str, str] | None = None, agent: str = ""
) -> list[tuple[str, dict[str, JsonValue]]]:
    for name, text in (pack or {}).items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(text, encoding="utf-8")
    folder.mkdir(exist_ok=True)
    server.will_answer(vendor.answer("calls"), vendor.answer("text"))
    async with vendor.opened(server.url) as provider:
        host = Host(
            trust=MADE_HERE,
            settings=Settings(),
            workspace=folder,
            home=folder,
            environ={},
            provider=provider,
            tools=(Answers("notes.search"), Answers("Read")),
        )
        async with open_runtime(host) as runtime:
            state = await runtime.start(RunRequest(task="look at the notes", agent=agent))
    assert state.status == "completed", state.failure
    return [story(record) for record in read_events(folder / "runs" / state.run_id / FILE_NAME)]


def story(record: EventRecord) -> tuple[str, dict[str, JsonValue]]:
    payload = dump_fields(record.payload)
    for name in DIFFERENT_BY_NATURE | OF_THE_PROMPT | {"context_id", "idempotency_key"}:
        payload.pop(name, None)
    return record.event_type, payload


async def test_equivalent_replies_of_all_vendors_produce_equal_events(server: WireServer, tmp_path: Path) -> None:
    stories = [await run(vendor, server, tmp_path / vendor.folder) for vendor in VENDORS]

    first = stories[0]
    assert [name for name, _ in first if name.startswith("llm_decision")] == ["llm_decision_decoded"] * 2
    for other in stories[1:]:
        assert other == first


async def test_a_pack_produces_equal_events_with_every_provider(server: WireServer, tmp_path: Path) -> None:
    stories = [await run(vendor, server, tmp_path / vendor.folder, pack=PACK, agent="checker") for vendor in VENDORS]

    first = stories[0]
    started = dict(first)["run_started"]
    assert (started["agent"], started["profile"]) == ("checker", "guarded")
    assert len({vendor.folder for vendor in VENDORS}) >= 3
    for other in stories[1:]:
        assert other == first
    assert isinstance(pins := started["pins"], dict)
    assert {"agent:checker", "skill:greeter"} <= pins.keys()
