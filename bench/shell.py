"""Bypasses of allow rules and evasions of deny rules that succeed. The cases come from a file that you name.

`SHELL_CASES` is the path of JSON lines `{command, allow_rule | deny_rule, expect}`; without it the tests' own table is
measured, beside what a raw prefix would let through.
"""

import json
import os
import runpy
from pathlib import Path

from bench.table import Row
from metier.approval.judge import RulePolicy
from metier.approval.profile import Profile, ProfilePolicy
from metier.approval.scopes import ScopeReader
from metier.context.decoder import build_step
from metier.tools.toolbox import Toolbox

_CASES = Path(__file__).resolve().parent.parent / "tests" / "approval" / "shell_cases.py"


def rows() -> list[Row]:
    named = os.environ.get("SHELL_CASES", "")
    cases = _read(Path(named)) if named else _read_own()
    allowed = [(rule, command) for rule, command, is_deny in cases if not is_deny]
    denied = [(rule, command) for rule, command, is_deny in cases if is_deny]
    found = [_count("bypasses of an allow rule that get through", allowed, allow=True, profile="guarded")]
    if denied:
        found.append(_count("evasions of a deny rule that get through", denied, allow=False, profile="permissive"))
    return found


def _count(name: str, cases: list[tuple[str, str]], *, allow: bool, profile: Profile) -> Row:
    passed = sum(_judge(rule, command, allow=allow, profile=profile) == "allow" for rule, command in cases)
    raw = sum(command.startswith(rule) == allow for rule, command in cases)
    return Row(name, f"{passed} of {len(cases)}", f"0 (raw prefix: {raw})", passed == 0)


def _judge(rule: str, command: str, *, allow: bool, profile: Profile) -> str:
    written = {"tool": "Bash", "allow": allow, "when": {"command": {"startsWith": rule}}}
    reader = ScopeReader(root="/repo", tools=frozenset({"Bash"}))
    scope = reader.read_policy(json.dumps([written]), file="policy.yaml")
    reader.check("The rules")
    tools = Toolbox()
    policy = RulePolicy(ProfilePolicy(profile, tools), tools, root="/repo", scopes=(scope,), is_partial=True)
    return policy.judge(build_step("Bash", {"command": command}, call_id=""), skill="").decision


def _read(file: Path) -> list[tuple[str, str, bool]]:
    lines = [json.loads(line) for line in file.read_text(encoding="utf-8").splitlines()]
    return [(case.get("allow_rule") or case["deny_rule"], case["command"], "deny_rule" in case) for case in lines]


def _read_own() -> list[tuple[str, str, bool]]:
    bypasses: dict[str, tuple[str, ...]] = runpy.run_path(str(_CASES))["BYPASSES"]
    return [
        (rule, command, False)
        for commands in bypasses.values()
        for command in commands
        for rule in ("git status", "ls", "pytest")
    ]
