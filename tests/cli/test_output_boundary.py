"""Output boundary: no command prints a known secret, a terminal sequence or a bidi character."""

import json
import re
from collections.abc import Callable
from typing import NamedTuple

import pytest
from model_server import ModelServer, calls, says
from run_workspace import Workspace

KEY = "sk-" + "fixed0Value9For8The7Test6Only"
HOSTILE = "a\x1b[31mred\x1b[0m b\u009b2Jc \u009d0;title\u009c d\u202egnp.exe e\u2028f \u2066g\u2069 h\U000e0041i"
RAW = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u2028\u2029\u202a-\u202e\u2066-\u2069\U000e0000-\U000e007f]")

COMMANDS = [
    ["runs", "show", "latest"],
    ["runs", "show", "latest", "--json"],
    ["runs", "list", "--json"],
    ["replay", "latest", "--event-stream"],
    ["replay", "latest", "--event-stream", "--json"],
    ["replay", "latest", "--execute", "--json"],
    ["prompt", "show", "latest"],
    ["prompt", "show", "latest", "--json"],
]


class Done(NamedTuple):
    code: int
    stdout: str
    stderr: str


type Start = Callable[..., Done]


@pytest.fixture
def start(workspace: Workspace, capfd: pytest.CaptureFixture[str]) -> Start:
    def command(*args: str) -> Done:
        capfd.readouterr()
        code = workspace.agent(*args)
        shown = capfd.readouterr()
        return Done(code, shown.out, shown.err)

    return command


@pytest.mark.parametrize("output", ["text", "json", "stream-json"])
def test_answer_with_a_key_and_control_sequences_is_shown_sanitized(
    start: Start, model: ModelServer, monkeypatch: pytest.MonkeyPatch, output: str
) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", KEY)
    model.follow(says(f"Your key is {KEY}. {HOSTILE}"))

    done = start("run", "What is my key?", "--output-format", output)

    assert done.code == 0, done.stderr
    assert "Your key is" in done.stdout
    for shown in (done.stdout, done.stderr):
        assert KEY not in shown
        assert RAW.search(shown) is None


def test_no_command_prints_recorded_text_unsanitized(
    workspace: Workspace, start: Start, model: ModelServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", KEY)
    workspace.write("odd.txt", f"{HOSTILE} {KEY}\n")
    model.follow(calls("Read", path="odd.txt"), says(f"It says {KEY} and {HOSTILE}"))
    start("run", f"Read odd.txt {HOSTILE}")

    for command in COMMANDS:
        done = start(*command)
        assert done.stdout, (command, done.stderr)
        for shown in (done.stdout, done.stderr):
            assert KEY not in shown, command
            assert RAW.search(shown) is None, (command, RAW.search(shown))


def test_json_is_equivalent_after_escaping(start: Start, model: ModelServer) -> None:
    model.follow(says(HOSTILE))

    done = start("run", "Say it", "--output-format", "json")

    assert json.loads(done.stdout)["result"] == HOSTILE


def test_persian_and_indic_joiners_are_kept_in_lists(workspace: Workspace, start: Start) -> None:
    workspace.add_skill("farsi", "می\u200cخواهم ක්\u200dර")

    listed = start("skills", "list")
    prompt = start("skills", "to-prompt", "skills/farsi")

    assert "می\u200cخواهم" in listed.stdout
    assert "ක්\u200dර" in prompt.stdout


@pytest.mark.parametrize(
    "command", [["runs", "list"], ["approvals", "list"], ["runs", "gc", "--keep", "0"]], ids=["runs", "approvals", "gc"]
)
def test_list_that_fails_before_its_first_row_prints_no_partial_output(
    workspace: Workspace, start: Start, command: list[str]
) -> None:
    empty = start(*command, "--json")
    workspace.write("agent.yaml", "runtime: {profile: loose}\n")

    failed = start(*command, "--json")

    assert json.loads(empty.stdout) in ([], {"dry_run": False, "deleted": []})
    assert (failed.code, failed.stdout) == (2, "")
