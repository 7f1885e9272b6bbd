"""A toolset worker without its process: import, description, calls and the shape of answers."""

from collections.abc import Mapping
from datetime import date
from pathlib import Path

import pytest

from metier.tools.toolsets.worker import CallReply, CallRequest, LoadReply, LoadRequest, Worker, build_reply

pytestmark = pytest.mark.anyio

MATH = """
from metier.tools.toolsets import AgentToolset

class Base(AgentToolset):
    def double(self, number: int = 1) -> int:
        return number * 2

class Adding(Base):
    async def add(self, left: int, right: int) -> int:
        return left + right + self.config.get("offset", 0)

class Again(AgentToolset):
    def __init__(self):
        super().__init__()

    def add(self, left: int) -> int:
        return left

class Chosen(AgentToolset):
    def get_tools(self):
        return [self.one]

    def one(self) -> int:
        return 1

    def two(self) -> int:
        return 2
"""


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


async def load(worker: Worker, folder: Path, *toolsets: str) -> LoadReply:
    (folder / "math.py").write_text(MATH)
    request = LoadRequest(skill="notes", folder=str(folder), toolsets=toolsets, config={"offset": 100})
    reply = await worker.answer(request)
    assert isinstance(reply, LoadReply)
    return reply


async def test_inherited_methods_are_tools_and_the_config_arrives(tmp_path: Path) -> None:
    worker = Worker()

    reply = await load(worker, tmp_path, "math:Adding")

    assert [(tool.name, tool.toolset) for tool in reply.tools] == [("double", "Adding"), ("add", "Adding")]
    assert await worker.answer(CallRequest(tool="add", arguments={"left": 1, "right": 2})) == CallReply(
        success=True, result=103
    )
    assert await worker.answer(CallRequest(tool="double", arguments={})) == CallReply(success=True, result=2)


async def test_toolset_can_select_its_tools(tmp_path: Path) -> None:
    reply = await load(Worker(), tmp_path, "math:Chosen")

    assert [tool.name for tool in reply.tools] == ["one"]


async def test_duplicate_names_within_a_skill_are_reported_and_the_first_is_used(tmp_path: Path) -> None:
    reply = await load(Worker(), tmp_path, "math:Adding", "math:Again")

    assert [tool.toolset for tool in reply.tools if tool.name == "add"] == ["Adding"]
    assert [(failure.code, failure.message) for failure in reply.failures] == [
        ("tool_collision", "Tool 'add' exists twice, in 'Adding' and 'Again'")
    ]


async def test_arguments_are_validated_again_against_the_type_hints(tmp_path: Path) -> None:
    worker = Worker()
    await load(worker, tmp_path, "math:Adding")

    wrong = await worker.answer(CallRequest(tool="add", arguments={"left": "x", "right": 1}))
    unknown = await worker.answer(CallRequest(tool="nothing", arguments={}))

    assert isinstance(wrong, CallReply)
    assert (wrong.success, wrong.error) == (False, "invalid_input")
    assert wrong.message.startswith("left: ")
    assert unknown == CallReply(success=False, error="not_found", message="There is no tool 'nothing'")


@pytest.mark.parametrize(
    ("returned", "reply"),
    [
        (None, CallReply(success=True)),
        ([1, date(2026, 1, 2)], CallReply(success=True, result=[1, "2026-01-02"])),
        ({"a": 1}, CallReply(success=True, result={"a": 1})),
        ({"success": "yes"}, CallReply(success=True, result={"success": "yes"})),
        ({"success": True, "result": 1, "message": "m"}, CallReply(success=True, result=1, message="m")),
        ({"success": False, "error": "code", "message": "m"}, CallReply(success=False, error="code", message="m")),
    ],
)
def test_every_return_value_has_the_same_shape(returned: Mapping[str, object], reply: CallReply) -> None:
    assert build_reply(returned) == reply
