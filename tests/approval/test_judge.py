"""Precedence of rules, and the default if none matches."""

from itertools import product

import pytest
from msgspec.structs import replace
from verdicts import judge, read_scope

from metier.approval.judge import evaluate_rules
from metier.approval.rules import Call, Decision, RuleList, Scope, ScopeKind

DECISIONS: tuple[Decision, ...] = ("allow", "ask", "deny")
KINDS: tuple[ScopeKind, ...] = ("host", "agent", "skill")


def say(decision: Decision, kind: ScopeKind = "host") -> Scope:
    return read_scope(f"rules: [{{tool: Read, verdict: {decision}}}]", kind)


@pytest.mark.parametrize("decisions", list(product(DECISIONS, repeat=3)))
def test_deny_overrides_ask_and_ask_overrides_allow_in_any_scope(decisions: tuple[Decision, ...]) -> None:
    host, agent, skill = (say(decision, kind) for decision, kind in zip(decisions, KINDS, strict=True))

    explanation = judge([host, agent], "Read", {}, skills=[replace(skill, name="notes")])

    assert explanation.verdict.decision == max(decisions, key=DECISIONS.index)
    assert [said.decision for said in explanation.outcomes] == list(decisions)


@pytest.mark.parametrize("decision", DECISIONS)
def test_the_first_matching_rule_decides_for_its_list(decision: Decision) -> None:
    scope = read_scope(
        f"rules: [{{tool: Read, when: {{path: {{equals: a}}}}, verdict: {decision}}}, {{tool: Read, allow: true}}]"
    )

    assert judge([scope], "Read", {"path": "a"}).verdict.decision == decision
    assert judge([scope], "Read", {"path": "b"}).verdict.decision == "allow"


@pytest.mark.parametrize(("decision", "expected"), [("allow", "ask"), ("ask", "ask"), ("deny", "deny")])
def test_an_untrusted_skill_can_narrow_but_not_allow(decision: Decision, expected: Decision) -> None:
    skill = replace(say(decision, "skill"), name="notes", is_trusted=False)

    assert judge([], "Read", {}, skills=[skill]).verdict.decision == expected


@pytest.mark.parametrize(("is_trusted", "expected"), [(True, "allow"), (False, "ask")])
def test_allowed_tools_count_only_while_the_skill_is_trusted(*, is_trusted: bool, expected: Decision) -> None:
    skill = Scope(kind="skill", name="notes", preapproved=frozenset({"Write", "Bash"}), is_trusted=is_trusted)

    assert judge([], "Write", {}, skills=[skill]).verdict.decision == expected
    assert judge([], "Bash", {"command": "ls"}, skills=[skill]).verdict.decision == "ask"


@pytest.mark.parametrize(("profile", "expected"), [("permissive", "allow"), ("guarded", "ask"), ("strict", "ask")])
def test_the_profile_decides_if_no_rule_matches(profile: str, expected: Decision) -> None:
    assert judge([], "Write", {}, profile=profile).verdict.decision == expected  # pyright: ignore[reportArgumentType]


def test_an_agent_with_allow_rules_asks_about_other_calls() -> None:
    agent = read_scope("rules: [{tool: Read, allow: true}]", "agent")

    assert judge([agent], "Write", {}, profile="permissive").verdict.decision == "ask"
    assert judge([replace(agent, kind="host")], "Write", {}, profile="permissive").verdict.decision == "allow"


@pytest.mark.parametrize(
    ("command", "expected"),
    [("git status", "allow"), ("git status ", "allow"), ("git status; rm -rf .", "ask"), ("git push", "deny")],
)
def test_a_command_is_allowed_only_if_its_whole_line_is_allowed(command: str, expected: Decision) -> None:
    scope = read_scope(
        "rules: [{tool: Bash, allow: false, when: {command: {contains: push}}},"
        " {tool: Bash, allow: true, when: {command: {in: [git status]}}},"
        " {tool: Bash, allow: true, when: {command: {startsWith: git}}}]"
    )

    assert judge([scope], "Bash", {"command": command}).verdict.decision == expected


def test_rules_do_not_apply_to_control_tools() -> None:
    scope = read_scope("rules: [{tool: '*', allow: false}]")

    for tool in ("use_skill", "ask_user", "finish", "read_skill_files"):
        assert judge([scope], tool, {}).verdict.decision == "allow"
    assert judge([scope], "anything/else", {}).verdict.decision == "deny"


def test_tasks_are_evaluated_by_task_rules_on_their_inputs() -> None:
    scope = read_scope(
        "tool_approvals: [{tool: '*', allow: false}]\n"
        "task_approvals: [{task: release, allow: true, when: {version: {matches: 'v.*'}}}]"
    )

    assert judge([scope], "run_task", {"task": "release", "inputs": {"version": "v1"}}).verdict.decision == "allow"
    assert judge([scope], "run_task", {"task": "release", "inputs": {"version": "1"}}).verdict.decision == "ask"


def test_the_verdict_names_the_rule_and_its_reason() -> None:
    scope = read_scope("rules:\n  - tool: Write\n    allow: false\n    reason: Nothing is written here\n")

    verdict = judge([scope], "Write", {"path": "a"}).verdict

    assert verdict.rule == "host rule 1 (policy.yaml:2)"
    assert verdict.reason == "Rule 1 of the host denies this call: Nothing is written here"


@pytest.mark.parametrize("default", ["allow", "ask", "deny"])
def test_the_default_allow_of_an_untrusted_scope_is_ignored(default: Decision) -> None:
    scope = Scope(kind="skill", name="x", is_trusted=False, tools=RuleList(default=default, is_written=True))

    said = evaluate_rules(scope, Call("Write", frozenset({"Write"}), {}))

    assert said.decision == (None if default == "allow" else default)
