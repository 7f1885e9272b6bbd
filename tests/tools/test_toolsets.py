"""Toolsets of skills: loaded in their own process, called through the toolbox."""

import json
import os
import sys
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack
from pathlib import Path
from typing import cast

import anyio
import pytest
from msgspec.structs import replace
from pydantic import JsonValue

from loop_clock import advance
from metier.definitions.skills.skill import load_skill
from metier.skills.package import PackageSource, SkillPackage
from metier.skills.skill_trust import digest_tree
from metier.tools.base import ToolContext, ToolResult
from metier.tools.toolbox import Toolbox
from metier.tools.toolsets.loader import ToolsetLimits, ToolsetReading, load_toolsets

pytestmark = [pytest.mark.anyio, pytest.mark.slow]

type Load = Callable[..., Awaitable[ToolsetReading]]

HELLO = '''
import asyncio
import os
import sys
from typing import Annotated
from pydantic import Field
from metier.tools.toolsets import AgentToolset, declare
from .words import GREETINGS
from ..shared import SIGN

class Hello(AgentToolset):
    """Greets people."""

    def __init__(self, config=None):
        super().__init__(config)
        self.count = 0

    @declare(effect="read", risk="low")
    async def greet(
        self,
        name: Annotated[str, Field(description="Whom to greet", min_length=1)],
        language: Annotated[str, Field(description="Which language")] = "en",
    ) -> dict:
        """Greet somebody
        politely.

        Details that no model needs.
        """
        await asyncio.sleep(0)
        self.count += 1
        if language not in GREETINGS:
            return self._error("unknown_language", f"No greeting for {language!r}")
        return self._success(f"{GREETINGS[language]}, {name}{SIGN}", f"Greeted {self.count}")

    def plain(self, numbers: list[int]) -> int:
        """Add numbers."""
        print("noise on standard output")
        return sum(numbers)

    def boom(self) -> None:
        raise ValueError("it broke")

    def leave(self) -> None:
        sys.exit(3)

    def die(self) -> None:
        print("last words", file=sys.stderr, flush=True)
        os._exit(1)

    def hang(self, marker: str) -> None:
        import subprocess, time
        subprocess.Popen(["sleep", "600"], start_new_session=True, env={"MARKER": marker})
        time.sleep(600)

    def environment(self) -> dict:
        return dict(os.environ)

    @declare(effect="keyed")
    def order(self) -> str:
        return self.idempotency_key

    def flood(self) -> str:
        return "x" * 5_000_000

    def odd(self) -> object:
        return object()

    def _hidden(self) -> None:
        pass
'''

FILES = {
    "toolsets/__init__.py": "",
    "toolsets/hello.py": HELLO,
    "toolsets/words.py": "GREETINGS = {'en': 'Hello', 'fr': 'Bonjour'}",
    "shared.py": "SIGN = '!'",
}
FRONT = "toolsets:\n  - toolsets.hello:Hello\n"


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


def make_skill(
    folder: Path, files: dict[str, str], front: str = FRONT, *, source: PackageSource = "workspace"
) -> SkillPackage:
    for path, text in files.items():
        (folder / path).parent.mkdir(parents=True, exist_ok=True)
        (folder / path).write_text(text)
    (folder / "SKILL.md").write_text(f"---\nname: {folder.name}\ndescription: A test.\n{front}---\n")
    skill = load_skill(folder).skill
    assert skill is not None
    return SkillPackage(definition=skill, folder=folder, source=source)


@pytest.fixture
async def load() -> AsyncIterator[Load]:
    """Load toolsets, and end their processes after the test."""
    async with AsyncExitStack() as stack:

        async def read(
            *packages: SkillPackage, environ: dict[str, str] | None = None, limits: ToolsetLimits | None = None
        ) -> ToolsetReading:
            reading = await load_toolsets(packages, {**os.environ, **(environ or {})}, limits=limits)
            stack.push_async_callback(reading.aclose)
            return reading

        yield read


async def call(reading: ToolsetReading, tool: str, /, **arguments: JsonValue) -> ToolResult:
    return await Toolbox(reading.tools).call(tool, arguments, ToolContext(workspace=Path()))


async def test_methods_become_tools_with_schemas_from_their_type_hints(load: Load, tmp_path: Path) -> None:
    modules, path = set(sys.modules), list(sys.path)

    reading = await load(make_skill(tmp_path / "my_hello", FILES))

    assert reading.problems == ()
    added = {name for name in set(sys.modules) - modules if not name.startswith("anyio.")}  # loaded at first use
    assert (added, sys.path) == (set(), path)
    greet = reading.tools[0].info
    assert (greet.id, greet.name, greet.aliases) == ("skill:my-hello.greet", "my-hello.greet", ("greet",))
    assert (greet.effect, greet.risk, greet.category) == ("read", "low", "custom")
    assert greet.description == "Greet somebody politely."
    assert greet.input_schema == {
        "type": "object",
        "properties": {
            "name": {"type": "string", "description": "Whom to greet", "minLength": 1},
            "language": {"type": "string", "description": "Which language", "default": "en"},
        },
        "required": ["name"],
        "additionalProperties": False,
    }
    assert (reading.tools[1].info.effect, reading.tools[1].info.risk) == ("opaque", "medium")
    assert "my-hello._hidden" not in {tool.info.name for tool in reading.tools}


async def test_async_and_sync_methods_return_the_same_shape_and_share_state(load: Load, tmp_path: Path) -> None:
    reading = await load(make_skill(tmp_path / "hello", FILES))

    first = await call(reading, "hello.greet", name="Ada")
    second = await call(reading, "greet", name="Ada", language="fr")
    failed = await call(reading, "greet", name="Ada", language="xx")
    plain = await call(reading, "plain", numbers=[1, 2, 3])

    assert first.output == {"success": True, "result": "Hello, Ada!", "message": "Greeted 1", "error": None}
    assert second.output == {"success": True, "result": "Bonjour, Ada!", "message": "Greeted 2", "error": None}
    assert (failed.ok, failed.error, failed.meta["code"]) == (False, "No greeting for 'xx'", "unknown_language")
    assert plain.output == {"success": True, "result": 6, "message": "", "error": None}


async def test_keyed_method_gets_the_key_of_its_call(load: Load, tmp_path: Path) -> None:
    toolbox = Toolbox((await load(make_skill(tmp_path / "hello", FILES))).tools)
    context = ToolContext(workspace=tmp_path)

    keyed = await toolbox.call("order", {}, replace(context, idempotency_key="key-1"))
    plain = await toolbox.call("order", {}, context)

    assert [cast("dict[str, str]", result.output)["result"] for result in (keyed, plain)] == ["key-1", ""]


async def test_method_failure_is_a_result_and_the_next_call_works(load: Load, tmp_path: Path) -> None:
    reading = await load(make_skill(tmp_path / "hello", FILES))

    assert (await call(reading, "boom")).error == "ValueError: it broke"
    assert (await call(reading, "leave")).error == "SystemExit: 3"
    assert "not JSON" in (await call(reading, "odd")).error
    died = await call(reading, "die")
    assert (died.ok, died.error) == (False, "The toolset ended without an answer\nstderr: last words")
    assert (await call(reading, "flood")).error == "The toolset answered with more than 1048576 bytes"
    assert "at $.name" in (await call(reading, "greet", name="")).error
    assert (await call(reading, "greet", name="Ada")).ok


@pytest.mark.skipif(sys.platform != "linux", reason="looks into /proc")
async def test_hanging_method_is_killed_with_its_child_processes(load: Load, tmp_path: Path) -> None:
    reading = await load(make_skill(tmp_path / "hello", FILES), limits=ToolsetLimits(call_timeout_seconds=600))
    results: list[ToolResult] = []

    async def hang() -> None:
        results.append(await call(reading, "hang", marker=str(tmp_path)))

    async with anyio.create_task_group() as tasks:
        tasks.start_soon(hang)
        await wait_until_marked(str(tmp_path))
        advance(600)

    (result,) = results
    assert (result.error, result.meta["code"]) == ("The toolset did not answer within 600 s", "timeout")
    assert list_marked(str(tmp_path)) == []
    assert (await call(reading, "greet", name="Ada")).ok


def list_marked(marker: str) -> list[Path]:
    return [entry for entry in Path("/proc").glob("[0-9]*/environ") if f"MARKER={marker}" in read_text(entry)]


def read_text(path: Path) -> str:
    try:
        return path.read_text(errors="replace")
    except OSError:
        return ""


async def wait_until_marked(marker: str) -> None:
    while not list_marked(marker):  # noqa: ASYNC110  other processes have no events for us
        await anyio.sleep(0.01)


@pytest.mark.skipif(sys.platform != "linux", reason="looks into /proc")
async def test_canceled_call_ends_the_process_and_the_next_call_starts_another(load: Load, tmp_path: Path) -> None:
    reading = await load(make_skill(tmp_path / "hello", FILES))

    async def hang() -> None:
        await call(reading, "hang", marker=str(tmp_path))

    async with anyio.create_task_group() as tasks:
        tasks.start_soon(hang)
        await wait_until_marked(str(tmp_path))
        tasks.cancel_scope.cancel()

    assert list_marked(str(tmp_path)) == []
    assert (await call(reading, "greet", name="Ada")).ok


async def test_toolset_gets_no_secret_of_the_agent(load: Load, tmp_path: Path) -> None:
    package = make_skill(tmp_path / "hello", FILES, FRONT + 'permissions:\n  env: ["HELLO_*"]\n')
    reading = await load(package, environ={"HELLO_KEY": "1", "ANTHROPIC_API_KEY": "2", "OTHER": "3"})

    output = cast("dict[str, dict[str, str]]", (await call(reading, "environment")).output)

    assert output["result"]["HELLO_KEY"] == "1"
    assert not {"ANTHROPIC_API_KEY", "OTHER"} & output["result"].keys()


async def test_equal_modules_of_two_skills_are_separate_and_duplicate_tools_are_reported(
    load: Load, tmp_path: Path
) -> None:
    one = make_skill(tmp_path / "one", FILES)
    two = make_skill(tmp_path / "two", {**FILES, "shared.py": "SIGN = '?'"})

    reading = await load(one, two)

    results = [await call(reading, name, name="Ada") for name in ("one.greet", "two.greet")]
    assert [cast("dict[str, str]", result.output)["result"] for result in results] == ["Hello, Ada!", "Hello, Ada?"]
    assert "There is no tool 'greet'" in (await call(reading, "greet", name="Ada")).error
    messages = [problem.message for problem in reading.problems if "'greet'" in problem.message]
    assert messages == ["Tool name 'greet' belongs to 'one.greet' and 'two.greet'"]


BAD = "from metier.tools.toolsets import AgentToolset\n"

BROKEN = {
    "syntax": ("def (", "SyntaxError"),
    "missing": ("import no_such_module", "No module named 'no_such_module'"),
    "leaves": ("import sys; sys.exit(1)", "SystemExit: 1"),
    "absent": (BAD, "has no class 'T'"),
    "stranger": ("class T: pass", "'T' does not inherit from AgentToolset"),
    "constructor": (f"{BAD}class T(AgentToolset):\n def __init__(self, config): raise OSError('no')", "OSError: no"),
    "untyped": (f"{BAD}class T(AgentToolset):\n def f(self, x): pass", "Parameter 'x' has no type hint"),
    "star": (f"{BAD}class T(AgentToolset):\n def f(self, *x: int): pass", "use named parameters"),
    "unknown type": (f"{BAD}class T(AgentToolset):\n def f(self, x: 'Nope'): pass", "name 'Nope' is not defined"),
}


async def test_broken_toolset_is_a_problem_and_the_other_skills_load(load: Load, tmp_path: Path) -> None:
    files = {f"bad_{number}.py": code for number, (code, _) in enumerate(BROKEN.values())}
    references = json.dumps([f"bad_{number}:T" for number in range(len(BROKEN))])
    broken = make_skill(tmp_path / "broken", files, f"toolsets: {references}\n")
    dying = make_skill(tmp_path / "dying", {"bad.py": "import os; os._exit(1)"}, "toolsets: [bad:T]\n")

    reading = await load(broken, dying, make_skill(tmp_path / "hello", FILES))

    assert {problem.severity for problem in reading.problems} == {"error"}
    assert [Path(problem.file).parent.name for problem in reading.problems] == ["broken"] * len(BROKEN) + ["dying"]
    messages = [*(message for _, message in BROKEN.values()), "The toolset ended without an answer"]
    for problem, message in zip(reading.problems, messages, strict=True):
        assert message in problem.message
    assert (await call(reading, "greet", name="Ada")).ok


REFERENCES = ("hello", "../x:T", "toolsets.hello:", ":Hello", "a b:T", "os:system")


async def test_reference_that_is_not_a_module_of_the_skill_is_a_problem(load: Load, tmp_path: Path) -> None:
    reading = await load(make_skill(tmp_path / "hello", FILES, f"toolsets: {json.dumps(REFERENCES)}\n"))

    assert reading.tools == ()
    assert len(reading.problems) == len(REFERENCES)


async def test_untrusted_toolset_is_not_imported_and_trust_is_checked_at_each_call(load: Load, tmp_path: Path) -> None:
    files = {**FILES, "shared.py": f"SIGN = '!'\nopen({str(tmp_path / 'imported')!r}, 'w')"}
    package = make_skill(tmp_path / "hello", files, source="installed")

    refused = await load(package)

    assert refused.tools == ()
    assert refused.problems[0].code == "permission_denied"
    assert not (tmp_path / "imported").exists()

    reading = await load(replace(package, trusted_digest=digest_tree(package.folder).tree))
    assert (await call(reading, "greet", name="Ada")).ok
    (package.folder / "shared.py").write_text("SIGN = '?'")
    denied = await call(reading, "greet", name="Ada")
    assert denied.meta["code"] == "permission_denied"
