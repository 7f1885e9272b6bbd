"""Rules that deny a program, and other ways to run it: the strongest sandbox blocks all of them."""

import os
from pathlib import Path

import pytest
from workspaces import Drill, call, put

from metier.approval.scopes import ScopeReader
from metier.approval.shell import list_denied_programs
from metier.testing.scripted import says
from metier.tools.process.child_environment import base_interpreter
from metier.tools.process.sandbox.bubblewrap import get_bubblewrap
from metier.tools.process.sandbox.confinement import list_masked
from metier.tools.process.sandbox.levels import choose_level

pytestmark = pytest.mark.anyio

DENY = {".agent/policy.yaml": "tool_approvals: [{tool: Bash, allow: false, when: {command: {startsWith: touch}}}]\n"}

NONE: set[str] = set()
CURL = "- {tool: Bash, allow: false, when: {command: {startsWith: curl}}}"


@pytest.mark.parametrize(
    "command",
    [
        "find . -maxdepth 0 -exec touch PWNED ';'",
        "taskset 1 touch PWNED",
        "prlimit touch PWNED",
        "ssh-agent touch PWNED",
        "./tt PWNED",
    ],
)
async def test_a_program_that_can_run_a_denied_one_needs_approval_without_a_sandbox(
    command: str, tmp_path: Path
) -> None:
    put(tmp_path, DENY)
    (tmp_path / "tt").symlink_to("/usr/bin/touch")
    drill = Drill(tmp_path, [call("Bash", command=command), says("done")], profile="permissive")

    state = await drill.run()

    assert state.status == "paused"
    assert not (tmp_path / "PWNED").exists()


async def test_running_a_copy_of_a_denied_program_needs_approval(tmp_path: Path) -> None:
    put(tmp_path, DENY)
    script = [call("Bash", command="cp /usr/bin/touch tt"), call("Bash", command="./tt PWNED"), says("done")]
    drill = Drill(tmp_path, script, profile="permissive")

    state = await drill.run()

    assert state.status == "paused"
    assert (tmp_path / "tt").exists()
    assert not (tmp_path / "PWNED").exists()


@pytest.mark.parametrize(
    "command",
    [
        "find . -maxdepth 0 -exec touch PWNED ';'",
        "env touch PWNED",
        'python3 -c \'import os; os.execv("/usr/bin/touch", ["touch", "PWNED"])\'',
        "cp /usr/bin/touch tt; ./tt PWNED",
        "ln -s /bin/touch tt && ./tt PWNED",
        "sh x.sh",
    ],
)
async def test_an_approved_command_cannot_run_a_denied_program_in_the_sandbox(command: str, tmp_path: Path) -> None:
    if choose_level(get_bubblewrap(os.environ, tmp_path)).level != "full":
        pytest.skip("no bubblewrap here")
    put(tmp_path, DENY | {"x.sh": "t=tou; ${t}ch PWNED; echo through\n"})
    drill = Drill(tmp_path, [call("Bash", command=command), says("done")])
    state = await drill.run()

    await drill.decide("approved")
    state = await Drill(tmp_path, [says("done")]).resume(state.run_id)

    assert state.status == "completed"
    assert not (tmp_path / "PWNED").exists()


@pytest.mark.parametrize(
    ("rules", "denied"),
    [
        (CURL, {"curl"}),
        ("- {tool: Bash, allow: true, when: {command: {startsWith: curl -V}}}\n" + CURL, NONE),
        (
            "- {tool: Bash, allow: false, when: {command: {anyOf: [{startsWith: curl}, {startsWith: wget}]}}}",
            {"curl", "wget"},
        ),
        ("- {tool: Bash, allow: false, when: {command: {matches: 'curl.*'}}}", {"curl"}),
        ("- {tool: Bash, allow: false, when: {command: {matches: 'curl [a-z]+'}}}", NONE),
        ("- {tool: Bash, allow: false, when: {command: {startsWith: git push}}}", NONE),
        ("- {tool: Bash, allow: false, when: {command: {startsWith: curl}, cwd: {equals: x}}}", NONE),
        ("- {tool: Bash, allow: false}", NONE),
        (
            "- {tool: Bash, allow: true, when: {command: {startsWith: nc -h}}}\n" + CURL,
            {"curl"},
        ),
        (
            "- {tool: Bash, allow: true, when: {command: {equals: make}}}\n" + CURL,
            NONE,
        ),
    ],
)
def test_a_program_is_denied_entirely_only_if_none_of_its_commands_is_allowed(rules: str, denied: set[str]) -> None:
    reader = ScopeReader(root="/repo")

    scope = reader.read_policy(rules, file="policy.yaml")

    assert reader.problems == []
    assert list_denied_programs([scope]) == denied


def test_a_denied_program_is_recognized_under_its_other_names(tmp_path: Path) -> None:
    for name in ("one", "two"):
        (tmp_path / name).mkdir()
    program = tmp_path / "one/fetcher"
    program.write_text("#!/bin/sh\n")
    (tmp_path / "two/get").hardlink_to(program)
    (tmp_path / "two/fetcher").symlink_to(program)

    found = list_masked(["fetcher"], f"{tmp_path}/two:{tmp_path}/one")

    assert {path for path in found if path.is_relative_to(tmp_path)} == {program, tmp_path / "two/get"}


def test_shell_and_interpreter_of_the_agent_stay_available_despite_deny_rules() -> None:
    kept = {Path("/bin/bash").resolve(), Path(base_interpreter()).resolve()}

    assert kept.isdisjoint(list_masked(["bash", Path(base_interpreter()).name], os.environ["PATH"]))
