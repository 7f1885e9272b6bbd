"""The three script tools, through the toolbox, with real processes."""

import itertools
import json
import os
import sys
import threading
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

import anyio
import pytest
from msgspec.structs import replace
from pydantic import JsonValue

from loop_clock import advance
from metier.definitions.skills.skill import load_skill
from metier.events.payload import Payload
from metier.events.step import SkillStepExecuted
from metier.skills.package import PackageSource, SkillPackage
from metier.skills.skill_trust import digest_tree
from metier.tools.base import ToolContext, ToolResult
from metier.tools.scripts.active_scripts import ScriptCatalog, ScriptLimits
from metier.tools.scripts.runner import ScriptEnvironments, ScriptRunner
from metier.tools.scripts.script_tools import build_script_tools
from metier.tools.toolbox import Toolbox
from metier.values import dump_fields

pytestmark = pytest.mark.anyio


@dataclass(frozen=True)
class Lab:
    """Skills on disk, and the three tools like in a run."""

    folder: Path

    @property
    def context(self) -> ToolContext:
        return ToolContext(workspace=self.folder)

    def skill(
        self, name: str, files: dict[str, str], *, front: str = "", source: PackageSource = "workspace"
    ) -> SkillPackage:
        folder = self.folder / "skills" / name
        for path, text in files.items():
            (folder / path).parent.mkdir(parents=True, exist_ok=True)
            (folder / path).write_text(text)
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "SKILL.md").write_text(
            f"---\nname: {name}\ndescription: A skill for a test.\n{front}---\n\n# {name}\n"
        )
        skill = load_skill(folder).skill
        assert skill is not None
        return SkillPackage(definition=skill, folder=folder, source=source)

    def toolbox(
        self, *packages: SkillPackage, limits: ScriptLimits | None = None, environ: dict[str, str] | None = None
    ) -> Toolbox:
        variables = {**os.environ, **(environ or {})}
        environments = ScriptEnvironments(folder=self.folder / "environments", environ=variables)
        runner = ScriptRunner(environments=environments, environ=variables)
        return Toolbox(build_script_tools(ScriptCatalog(packages), runner, limits))


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


@pytest.fixture
def lab(tmp_path: Path) -> Lab:
    return Lab(tmp_path)


ECHO = """
import argparse, json, os, sys
parser = argparse.ArgumentParser(description="Say what was said.")
parser.add_argument("words", nargs="*")
parser.add_argument("--json", action="store_true")
options = parser.parse_args()
print(json.dumps({"words": options.words, "cwd": os.getcwd(), "env": dict(os.environ)}) if options.json else "plain")
"""


def answer_of(result: ToolResult) -> dict[str, JsonValue]:
    assert isinstance(result.output, dict)
    return result.output


async def run_script(
    toolbox: Toolbox, context: ToolContext, script: str, **more: str | bool | Sequence[str] | None
) -> dict[str, JsonValue]:
    arguments = cast("dict[str, JsonValue]", {"skill_name": "notes", "script_name": script, **more})
    return answer_of(await toolbox.call("script_run", arguments, context))


async def test_scripts_of_all_skills_are_listed_with_their_paths(lab: Lab) -> None:
    notes = lab.skill("notes", {"scripts/status.py": "", "scripts/search.py": "", "scripts/.hidden.py": ""})
    empty = lab.skill("empty", {})
    other = lab.skill("other", {"scripts/a_test.py": "", "scripts/b.py": ""}, front='scripts_ignore: ["*_test.py"]\n')

    answer = answer_of(await lab.toolbox(notes, empty, other).call("script_list", {}, lab.context))

    assert answer == {
        "success": True,
        "result": {
            "notes": [
                {"name": "search", "path": str(notes.folder / "scripts/search.py")},
                {"name": "status", "path": str(notes.folder / "scripts/status.py")},
            ],
            "other": [{"name": "b", "path": str(other.folder / "scripts/b.py")}],
        },
        "message": "Found 3 scripts across 2 skills",
    }


async def test_scripts_of_one_skill_are_listed_by_any_spelling_of_its_name(lab: Lab) -> None:
    toolbox = lab.toolbox(lab.skill("my-notes", {"scripts/status.py": ""}), lab.skill("other", {"scripts/b.py": ""}))

    for spelling in ("my-notes", "My_Notes", "MY-NOTES"):
        answer = answer_of(await toolbox.call("script_list", {"skill_name": spelling}, lab.context))
        assert answer["message"] == "Found 1 script across 1 skill"

    missing = answer_of(await toolbox.call("script_list", {"skill_name": "nobody"}, lab.context))
    assert missing == {"success": False, "error": "not_found", "message": "Skill 'nobody' not loaded or installed"}


async def test_script_runs_in_its_own_folder_and_its_json_is_parsed(lab: Lab) -> None:
    package = lab.skill("notes", {"scripts/echo.py": ECHO})
    toolbox = lab.toolbox(package)

    answer = await run_script(toolbox, lab.context, "Echo.py", args=["a b", "$HOME", "*"])

    assert answer["success"] is True
    assert answer["message"] == "Executed echo script"
    result = cast("dict[str, JsonValue]", answer["result"])
    assert result["words"] == ["a b", "$HOME", "*"]
    assert result["cwd"] == str(package.folder / "scripts")


async def test_plain_text_is_returned_unchanged_without_json(lab: Lab) -> None:
    toolbox = lab.toolbox(lab.skill("notes", {"scripts/echo.py": ECHO}))

    answer = await run_script(toolbox, lab.context, "echo", json=False, args=None)

    assert answer == {"success": True, "result": "plain\n", "message": "Executed echo script"}


@pytest.mark.parametrize(
    ("args", "expected"),
    [
        ([], ["--json"]),
        (["a"], ["a", "--json"]),
        (["--json", "a"], ["--json", "a"]),
        (["a", "--", "-x"], ["a", "--json", "--", "-x"]),
        (["--", "--json"], ["--json", "--", "--json"]),
    ],
)
async def test_json_flag_is_added_once_before_the_end_of_options(
    lab: Lab,
    args: list[str],
    expected: list[str],
) -> None:
    toolbox = lab.toolbox(
        lab.skill("notes", {"scripts/argv.py": "import sys, json  # --json\nprint(json.dumps(sys.argv[1:]))"})
    )

    assert (await run_script(toolbox, lab.context, "argv", args=args))["result"] == expected


async def test_help_comes_from_the_script_and_is_requested_once(lab: Lab) -> None:
    count = "open('../count', 'a').write('x')\n"
    package = lab.skill("notes", {"scripts/echo.py": count + ECHO})
    toolbox = lab.toolbox(package)
    arguments: dict[str, JsonValue] = {"skill_name": "notes", "script_name": "echo"}

    first = answer_of(await toolbox.call("script_help", arguments, lab.context))
    second = answer_of(await toolbox.call("script_help", arguments, lab.context))

    assert first == second
    assert first["message"] == "Retrieved help for echo"
    result = cast("dict[str, str]", first["result"])
    assert result["usage"] == "echo.py [-h] [--json] [words ...]"
    assert "Say what was said." in result["help_text"]
    assert (package.folder / "count").read_text() == "x"

    (package.folder / "scripts/echo.py").write_text(count + ECHO.replace("was said", "changed"))
    third = answer_of(await toolbox.call("script_help", arguments, lab.context))
    assert "Say what changed." in cast("dict[str, str]", third["result"])["help_text"]


NAMES = [
    "../x",
    "/abs",
    ".hidden",
    ".",
    "..",
    "~",
    "__pycache__",
    "a b",
    "a" * 65,
    "a\0b",
    "",
    "a//b",
    "a/../b",
    "a\\b",
    "é",
    "a.py.py",
]


@pytest.mark.parametrize("name", NAMES)
async def test_names_that_are_not_plain_are_refused_everywhere(lab: Lab, name: str) -> None:
    toolbox = lab.toolbox(lab.skill("notes", {"scripts/echo.py": ECHO}))

    for tool in ("script_help", "script_run"):
        for arguments in ({"skill_name": name, "script_name": "echo"}, {"skill_name": "notes", "script_name": name}):
            answer = answer_of(await toolbox.call(tool, cast("dict[str, JsonValue]", arguments), lab.context))
            assert answer["error"] == "invalid_name"
    listed = answer_of(await toolbox.call("script_list", {"skill_name": name}, lab.context))
    assert listed["error"] == "invalid_name"
    assert str(listed["message"]).startswith("Invalid skill name: '")


async def test_missing_script_and_missing_skill_are_named(lab: Lab) -> None:
    toolbox = lab.toolbox(lab.skill("notes", {"scripts/echo.py": ECHO}))

    assert await run_script(toolbox, lab.context, "xyz") == {
        "success": False,
        "error": "not_found",
        "message": "Script 'xyz' not found in skill 'notes'",
    }
    assert await run_script(toolbox, lab.context, "echo", skill_name="unknown-skill") == {
        "success": False,
        "error": "not_found",
        "message": "Skill 'unknown-skill' not loaded or installed",
    }


async def test_too_many_or_too_long_arguments_are_rejected_before_anything_runs(lab: Lab) -> None:
    package = lab.skill("notes", {"scripts/mark.py": "open('../ran', 'w')\nprint('{}')"})
    toolbox = lab.toolbox(package)

    many = await run_script(toolbox, lab.context, "mark", args=["x"] * 150)
    long = await run_script(toolbox, lab.context, "mark", args=["é" * 3000])
    odd = await run_script(toolbox, lab.context, "mark", args=["a\0b"])
    half = await run_script(toolbox, lab.context, "mark", args=["\ud800"])

    assert (many["error"], many["message"]) == ("args_too_large", "Too many arguments: 150 (max 100)")
    assert (long["error"], long["message"]) == ("args_too_large", "Arguments too long: 6000 bytes (max 4096)")
    assert odd["error"] == half["error"] == "execution_failed"
    assert not (package.folder / "ran").exists()

    assert (await run_script(toolbox, lab.context, "mark", args=["x"] * 100))["success"] is True


UNDER_WAY = 'open("../under way", "w").close()\n'


async def run_too_long(run: Callable[[], Awaitable[dict[str, Any]]], under_way: Path) -> dict[str, Any]:
    """Run a script whose time limit passes when it reports that it started."""
    answers: list[dict[str, Any]] = []

    async def collect() -> None:
        answers.append(await run())

    async with anyio.create_task_group() as tasks:
        tasks.start_soon(collect)
        while not under_way.exists():  # noqa: ASYNC110  other processes have no events for us
            await anyio.sleep(0.01)
        advance(60)
    return answers[0]


async def test_slow_script_times_out_with_the_end_of_its_stderr(lab: Lab) -> None:
    slow = "import sys, time\nprint('e' * 600 + 'last words', file=sys.stderr, flush=True)\n"
    package = lab.skill("notes", {"scripts/slow.py": f"{slow}{UNDER_WAY}time.sleep(600)"})
    toolbox = lab.toolbox(package, limits=ScriptLimits(timeout_seconds=60))

    answer = await run_too_long(lambda: run_script(toolbox, lab.context, "slow"), package.folder / "under way")

    assert answer["error"] == "timeout"
    assert answer["message"] == "Script timed out after 60s\nstderr: " + ("e" * 600 + "last words\n")[-500:].strip()


@pytest.mark.skipif(sys.platform != "linux", reason="looks into /proc")
async def test_timed_out_script_leaves_no_process_behind(lab: Lab) -> None:
    code = """
import os, signal, time
signal.signal(signal.SIGTERM, signal.SIG_IGN)
if os.fork() == 0:
    os.setsid()
    if os.fork() == 0:
        open("../under way", "w").close()
time.sleep(600)
"""
    package = lab.skill("notes", {"scripts/daemon.py": code})

    toolbox = lab.toolbox(package, limits=ScriptLimits(timeout_seconds=60))

    answer = await run_too_long(lambda: run_script(toolbox, lab.context, "daemon"), package.folder / "under way")

    assert answer["error"] == "timeout"
    assert find_processes(str(package.folder)) == []


def find_processes(word: str) -> list[str]:
    """Return command lines that contain this word."""
    found: list[str] = []
    for entry in Path("/proc").glob("[0-9]*"):
        try:
            line = (entry / "cmdline").read_bytes().decode(errors="replace")
        except OSError:
            continue
        if word in line:
            found.append(line)
    return found


async def test_remaining_time_of_the_run_limits_the_timeout_of_a_script(lab: Lab) -> None:
    toolbox = lab.toolbox(lab.skill("notes", {"scripts/slow.py": "import time\ntime.sleep(600)"}))

    answer = await run_script(toolbox, replace(lab.context, timeout_seconds=0.2), "slow")

    assert answer["message"] == "Script timed out after 0.2s"


async def test_failing_script_is_execution_failed_with_its_exit_code(lab: Lab) -> None:
    files = {
        "scripts/fail.py": "import sys\nsys.exit('no such market')",
        "scripts/usage.py": "import argparse  # without --json\nargparse.ArgumentParser().parse_args()",
        "scripts/crash.py": "import os, signal\nos.kill(os.getpid(), signal.SIGSEGV)",
    }
    toolbox = lab.toolbox(lab.skill("notes", files))

    assert await run_script(toolbox, lab.context, "fail") == {
        "success": False,
        "error": "execution_failed",
        "message": "Script failed with exit code 1\nstderr: no such market",
    }
    assert "json=false" in str((await run_script(toolbox, lab.context, "usage"))["message"])
    assert "json=false" not in str((await run_script(toolbox, lab.context, "usage", json=False, args=["x"]))["message"])
    assert (await run_script(toolbox, lab.context, "crash"))["message"] == "Script was ended by signal 11"


@pytest.mark.parametrize(
    ("printed", "seen"),
    [
        ("'Warning: old\\n{\"a\": 1}'", "Expected JSON output, got: Warning: old\n"),
        ("''", "Expected JSON output, got: nothing"),
        ("'NaN'", "Expected JSON output, got: NaN"),
        ("'[' * 100_000", "Expected JSON output, got: [[["),
        ("'{} {}'", "Expected JSON output, got: {} {}"),
    ],
)
async def test_output_that_is_not_one_json_value_is_a_parse_error_that_quotes_it(
    lab: Lab, printed: str, seen: str
) -> None:
    script = f"import sys  # it takes --json\nsys.stderr.write('hint on stderr')\nsys.stdout.write({printed})"
    toolbox = lab.toolbox(lab.skill("notes", {"scripts/odd.py": script}))

    answer = await run_script(toolbox, lab.context, "odd")

    assert answer["error"] == "parse_error"
    assert str(answer["message"]).startswith(seen)
    assert str(answer["message"]).endswith("\nstderr: hint on stderr")
    assert len(str(answer["message"])) < 800


async def test_output_beyond_the_limit_keeps_head_and_tail_with_a_notice(lab: Lab) -> None:
    toolbox = lab.toolbox(
        lab.skill("notes", {"scripts/flood.py": "print('start' + 'x' * 10_000 + 'end')  # --json"}),
        limits=ScriptLimits(max_output_bytes=1000),
    )

    text = await run_script(toolbox, lab.context, "flood", json=False)
    parsed = await run_script(toolbox, lab.context, "flood")

    assert str(text["result"]).startswith("startx")
    assert str(text["result"]).endswith("xend\n")
    assert "9009 bytes dropped" in str(text["result"])
    assert "warning: output of 10009 bytes cut" in str(text["message"])
    assert parsed["error"] == "parse_error"
    assert "cut" in str(parsed["message"])


async def test_invalid_utf_8_and_incomplete_characters_are_replaced(lab: Lab) -> None:
    files = {
        "scripts/bytes.py": "import sys\nsys.stdout.buffer.write(b'a\\xff\\xe4b')",
        "scripts/half.py": r"""print('{"half": "\\ud800"}')""",
    }
    toolbox = lab.toolbox(lab.skill("notes", files))

    assert (await run_script(toolbox, lab.context, "bytes", json=False))["result"] == "a\ufffd\ufffdb"
    assert (await run_script(toolbox, lab.context, "half"))["result"] == {"half": "?"}


async def test_untrusted_skill_neither_runs_nor_shows_its_help(lab: Lab) -> None:
    package = lab.skill("notes", {"scripts/mark.py": "open('../ran', 'w')"}, source="installed")
    toolbox = lab.toolbox(package)
    arguments: dict[str, JsonValue] = {"skill_name": "notes", "script_name": "mark"}

    listed = answer_of(await toolbox.call("script_list", {}, lab.context))
    shown = answer_of(await toolbox.call("script_help", arguments, lab.context))
    ran = await run_script(toolbox, lab.context, "mark")

    assert listed["success"] is True
    assert shown["error"] == ran["error"] == "permission_denied"
    assert "agent skill trust notes" in str(ran["message"])
    assert not (package.folder / "ran").exists()


async def test_trust_ends_with_the_first_changed_byte_even_for_cached_help(lab: Lab) -> None:
    package = lab.skill("notes", {"scripts/echo.py": ECHO, "scripts/helper.py": "x = 1"}, source="installed")
    trusted = replace(package, trusted_digest=digest_tree(package.folder).tree)
    toolbox = lab.toolbox(trusted)
    arguments: dict[str, JsonValue] = {"skill_name": "notes", "script_name": "echo"}
    assert (await toolbox.call("script_help", arguments, lab.context)).ok
    assert (await run_script(toolbox, lab.context, "echo"))["success"] is True

    (package.folder / "scripts/helper.py").write_text("x = 2")

    assert answer_of(await toolbox.call("script_help", arguments, lab.context))["error"] == "permission_denied"
    assert (await run_script(toolbox, lab.context, "echo"))["error"] == "permission_denied"


async def test_running_a_script_does_not_change_the_trusted_files(lab: Lab) -> None:
    files = {
        "scripts/main.py": "import sibling, json\nprint(json.dumps(sibling.VALUE))",
        "scripts/sibling.py": "VALUE = 7",
    }
    package = lab.skill("notes", files, source="installed")
    trusted = replace(package, trusted_digest=digest_tree(package.folder).tree)

    answers = [await run_script(lab.toolbox(trusted), lab.context, "main") for _ in range(2)]

    assert [answer["result"] for answer in answers] == [7, 7]


async def test_symbolic_links_are_not_scripts(lab: Lab) -> None:
    (lab.folder / "outside.py").write_text("print('{}')")
    package = lab.skill("notes", {"scripts/echo.py": ECHO})
    (package.folder / "scripts/link.py").symlink_to(lab.folder / "outside.py")
    toolbox = lab.toolbox(package)

    answer = await run_script(toolbox, lab.context, "link")

    assert answer["error"] == "permission_denied"
    assert answer["message"] == "Script 'link' is a symbolic link"


async def test_script_gets_the_variables_named_by_its_skill_and_no_secret(lab: Lab) -> None:
    front = 'permissions:\n  env: [EXACT_NAME, "KALSHI_*", "*", "AGENT_*"]\n'
    package = lab.skill("notes", {"scripts/echo.py": ECHO}, front=front)
    environ = {
        "EXACT_NAME": "1",
        "KALSHI_API_KEY": "2",
        "OTHER_TOKEN": "3",
        "AGENT_SECRET": "4",
        "ANTHROPIC_API_KEY": "5",
        "UV_INDEX_PRIVATE_PASSWORD": "6",
        "HTTPS_PROXY": "http://user:" + "word@proxy:1",
        "PYTHONPATH": "/somewhere",
        "UV_OFFLINE": "1",
    }
    toolbox = lab.toolbox(package, environ=environ)

    answer = await run_script(toolbox, replace(lab.context, idempotency_key="key-1"), "echo")

    seen = cast("dict[str, dict[str, str]]", answer["result"])["env"]
    assert {name for name in environ if name in seen} == {"EXACT_NAME", "KALSHI_API_KEY"}
    assert seen["AGENT_IDEMPOTENCY_KEY"] == "key-1"
    assert (
        "AGENT_IDEMPOTENCY_KEY"
        not in cast("dict[str, dict[str, str]]", (await run_script(toolbox, lab.context, "echo"))["result"])["env"]
    )


async def test_every_execution_emits_an_event(lab: Lab) -> None:
    events: list[Payload] = []
    package = lab.skill("notes", {"scripts/ok.py": "print('{}')", "scripts/bad.py": "import sys; sys.exit('oh')"})
    toolbox = lab.toolbox(package)
    telling = replace(lab.context, emit=events.append, step_id="s1")

    await run_script(toolbox, telling, "ok")
    await run_script(toolbox, telling, "bad")
    await run_script(toolbox, telling, "../bad")

    first, second, third = (cast("SkillStepExecuted", event) for event in events)
    assert (first.status, first.script, first.skill_name, first.stdout_bytes, first.exit_code) == (
        "succeeded",
        "ok.py",
        "notes",
        3,
        0,
    )
    assert first.duration_ms > 0
    assert first.step_id == "s1"
    assert (second.status, second.error_type, second.stderr_summary) == ("failed", "execution_failed", "oh\n")
    assert (third.status, third.error_type, third.script) == ("failed", "invalid_name", "")


def test_the_three_tools_cost_fewer_than_700_tokens_of_context(lab: Lab) -> None:
    specs = [dump_fields(spec) for spec in lab.toolbox().specs()]

    assert [spec["name"] for spec in specs] == ["script_help", "script_list", "script_run"]
    assert len(json.dumps(specs)) / 4 < 700


async def test_the_hashed_script_runs_even_if_the_file_is_swapped(
    lab: Lab, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The bytes cannot be swapped between their check and their start."""
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    (tmp_path / "home").mkdir()
    good = "import json, text\nprint(json.dumps(text.TEXT))\n"
    package = lab.skill("notes", {"scripts/say.py": good, "scripts/text.py": "TEXT = 'good'\n"}, source="user")
    package = replace(package, trusted_digest=digest_tree(package.folder).tree)
    scripts, stop, swaps = package.folder / "scripts", threading.Event(), itertools.count()
    other = {"say.py": "print('\"evil\"')\n", "text.py": "TEXT = 'evil'\n"}
    trusted = {name: (scripts / name).read_text() for name in other}

    def swap() -> None:
        while not stop.is_set():
            for texts in (other, trusted):
                for name, text in texts.items():
                    (lab.folder / name).write_text(text)
                    (lab.folder / name).replace(scripts / name)
                next(swaps)
                stop.wait(0.002)

    thread = threading.Thread(target=swap)
    thread.start()
    try:
        answers = [await run_script(lab.toolbox(package), lab.context, "say") for _ in range(40)]
    finally:
        stop.set()
        thread.join()

    started = [str(answer["result"]) for answer in answers if answer["success"]]
    refused = {str(answer["error"]) for answer in answers if not answer["success"]}
    assert next(swaps) > 40
    assert set(started) == {"good"}, started
    assert refused <= {"permission_denied"}


async def test_a_damaged_copy_of_trusted_code_is_recreated(
    lab: Lab, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    package = lab.skill("notes", {"scripts/say.py": "print('\"good\"')\n"}, source="user")
    package = replace(package, trusted_digest=digest_tree(package.folder).tree)
    await run_script(lab.toolbox(package), lab.context, "say")
    (copy,) = (tmp_path / "home/.agent/code").iterdir()
    (copy / "scripts/say.py").unlink()
    (copy / "scripts/say.py").write_text("print('\"evil\"')\n")

    answer = await run_script(lab.toolbox(package), lab.context, "say")

    assert answer["result"] == "good"
    assert [path.name for path in (tmp_path / "home/.agent/code").iterdir()] == [package.trusted_digest]
