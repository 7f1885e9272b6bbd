"""Folding: the state after each entry, and impossible entries."""

import pytest
from journals import (
    asked,
    broke,
    decided,
    ended,
    finish,
    folded,
    intent,
    question,
    replied,
    started,
    tool,
    turn_of,
    until_call,
    use_skill,
)
from msgspec import convert

from metier.engine.entries.entry import Entry, parse_entry, render_entry
from metier.engine.entries.limits import Limits
from metier.engine.entries.model import DecodeFailed, ProgressVerified, Rejection
from metier.engine.entries.question import ApprovalAsked, ApprovalDecided, InputAsked, InputGiven
from metier.engine.entries.run import RunAdopted, RunFailed, RunFinished, RunPaused, RunResumed
from metier.engine.entries.skill import CatalogLoaded, ContextDisclosed, HandedOff
from metier.engine.entries.step import DoubtResolved, StepInDoubt, StepRetried
from metier.engine.state.fold import apply, fold
from metier.engine.state.phases import IllegalTransition, Phase
from metier.engine.state.run_state import RunState
from metier.messages import ToolResultPart

LOOK = tool("look", "c1")
PUSH = tool("push", "c2")

WAYS: list[tuple[Phase, list[Entry]]] = [
    ("INIT", []),
    ("LOAD_SKILL_CATALOG", [started()]),
    ("PREFILTER_SKILLS", until_call()[:2]),
    ("DISCLOSE_CONTEXT_STAGE", until_call()[:3]),
    ("CALL_LLM", until_call()),
    ("CALL_LLM", [*until_call(), asked()]),
    ("DECODE_DECISION", [*until_call(), asked(), replied()]),
    ("CALL_LLM", [*until_call(), asked(), replied(), DecodeFailed(turn=1, reason="empty", message="", repair=True)]),
    ("EXECUTE_STEP", [*until_call(), *turn_of(LOOK)]),
    ("HANDOFF_OR_FINISH", [*until_call(), *turn_of(finish())]),
    ("VERIFY_PROGRESS", [*until_call(), *turn_of(LOOK), intent("1.1", LOOK), ended("1.1")]),
    ("EXECUTE_STEP", [*until_call(), *turn_of(LOOK), intent("1.1", LOOK), broke("1.1")]),
    (
        "EXECUTE_STEP",
        [*until_call(), *turn_of(LOOK), intent("1.1", LOOK), broke("1.1"), StepRetried(step_id="1.1", reason="x")],
    ),
    (
        "DISCLOSE_CONTEXT_STAGE",
        [
            *until_call("b"),
            *turn_of(LOOK),
            intent("1.1", LOOK),
            broke("1.1"),
            HandedOff(from_skill="", to_skill="b", rationale="x", fallback=True),
        ],
    ),
    ("DONE", [*until_call(), *turn_of(finish()), RunFinished(result="done")]),
    ("ERROR", [*until_call(), RunFailed(reason="x", message="y")]),
]


@pytest.mark.parametrize(("phase", "entries"), WAYS)
def test_entries_lead_to_their_phase(phase: Phase, entries: list[Entry]) -> None:
    assert fold("r", entries).phase == phase


@pytest.mark.parametrize(
    ("entries", "next_entry"),
    [
        ([], CatalogLoaded(skills=())),
        ([started()], started()),
        ([started()], ContextDisclosed()),
        (until_call(), decided(LOOK)),
        (until_call(), RunFinished(result="")),
        ([*until_call(), *turn_of(LOOK)], replied()),
        ([*until_call(), *turn_of(LOOK)], ProgressVerified(following="CALL_LLM")),
        ([*until_call(), *turn_of(finish()), RunFinished(result="")], RunFailed(reason="x", message="y")),
        ([*until_call(), RunFailed(reason="x", message="y")], RunFailed(reason="x", message="y")),
    ],
)
def test_impossible_entry_raises(entries: list[Entry], next_entry: Entry) -> None:
    state = fold("r", entries)

    with pytest.raises(IllegalTransition):
        apply(state, next_entry)


def test_a_turn_is_counted_once_despite_repetitions() -> None:
    bad = DecodeFailed(turn=1, reason="empty", message="", repair=True)

    state = folded(until_call(), asked(1), asked(1), replied(), bad, asked(1, repair=True), replied(LOOK))

    assert state.turn == 1
    apply(state, decided(LOOK))
    apply(state, intent("1.1", LOOK))
    apply(state, broke("1.1"))
    apply(state, StepRetried(step_id="1.1", reason="x"))
    assert state.turn == 1


def test_history_has_one_result_per_call_in_call_order() -> None:
    unknown = tool("nope", "c0")
    rejected = (Rejection(call_id="c0", tool="nope", code="unknown_tool", message="There is no tool 'nope'"),)

    state = folded(
        until_call(),
        asked(),
        replied(unknown, PUSH, LOOK, finish()),
        decided(PUSH, LOOK, finish(), rejected=rejected),
        intent("1.2", LOOK),
        ended("1.2", text="seen"),
        intent("1.1", PUSH),
        ended("1.1", ok=False, text="stuck"),
        ProgressVerified(following="CALL_LLM"),
    )

    (message,) = state.run[0].results
    results = [part for part in message.parts if isinstance(part, ToolResultPart)]
    assert [(r.call_id, r.text, r.is_error) for r in results] == [
        ("c0", "There is no tool 'nope'", True),
        ("c2", "stuck", True),
        ("c1", "seen", False),
        ("f1", "Not run: the turn ended before it", True),
    ]


def test_first_skill_becomes_active_and_hands_over_to_the_next() -> None:
    state = folded(until_call("a", "b"), turn_of(use_skill("a")), intent("1.1", use_skill("a")), ended("1.1"))
    assert (state.skill, state.next_skill) == ("a", "")

    apply(state, ProgressVerified(following="DISCLOSE_CONTEXT_STAGE"))
    apply(state, ContextDisclosed())
    for entry in [*turn_of(use_skill("b"), turn=2), intent("2.1", use_skill("b")), ended("2.1")]:
        apply(state, entry)
    assert (state.skill, state.next_skill) == ("a", "b")

    apply(state, ProgressVerified(following="HANDOFF_OR_FINISH"))
    apply(state, HandedOff(from_skill="a", to_skill="b", rationale="x"))
    assert (state.skill, state.next_skill, state.used_skills) == ("b", "", ["a", "b"])


DOUBT: list[Entry] = [
    *until_call(),
    *turn_of(PUSH),
    intent("1.1", PUSH),
    StepInDoubt(step_id="1.1", known="it was started"),
    RunPaused(pause="in_doubt", reason="?"),
    RunResumed(reason="answered", driver="d"),
]


@pytest.mark.parametrize(
    ("answer", "step_phase", "status"),
    [("done", "finished", "succeeded"), ("skip", "finished", "skipped"), ("retry", "approved", None)],
)
def test_answer_about_a_step_with_unknown_outcome_is_applied(answer: str, step_phase: str, status: str | None) -> None:
    state = fold("r", DOUBT)

    apply(state, convert({"step_id": "1.1", "answer": answer}, DoubtResolved))

    step = state.steps[0]
    assert step.phase == step_phase
    assert (step.finished.status if step.finished else None) == status


def test_edited_arguments_of_an_approval_are_executed() -> None:
    state = folded(
        until_call(),
        turn_of(PUSH),
        ApprovalAsked(approval_id="a", step_id="1.1", arguments_hash="h", reason="r"),
        RunPaused(pause="approval", reason="a"),
        RunResumed(reason="decided", driver="d"),
        ApprovalDecided(approval_id="a", step_id="1.1", decision="approved", edited_arguments={"hard": "no"}),
    )

    assert state.steps[0].action.params == {"tool": "push", "arguments": {"hard": "no"}}
    assert state.steps[0].phase == "approved"


def test_user_input_is_the_result_of_the_question() -> None:
    state = folded(
        until_call(),
        turn_of(question()),
        InputAsked(request_id="in-1.1", step_id="1.1", question="Which?"),
        RunPaused(pause="input", reason="Which?"),
    )
    assert state.status == "input_required"

    apply(state, RunResumed(reason="answered", driver="d"))
    apply(state, InputGiven(request_id="in-1.1", values={"colour": "blue"}))

    assert state.phase == "VERIFY_PROGRESS"
    assert state.question is None
    assert state.steps[0].finished is not None
    assert state.steps[0].finished.text == '{"colour": "blue"}'


def test_entries_survive_serialization() -> None:
    for _, entries in WAYS:
        again = [parse_entry(render_entry(entry)) for entry in entries]
        assert again == entries


def test_usage_and_cost_add_up() -> None:
    state = folded(
        until_call(),
        turn_of(LOOK, cost=0.5),
        intent("1.1", LOOK),
        ended("1.1"),
        ProgressVerified(following="CALL_LLM"),
        turn_of(finish(), turn=2, cost=0.25),
    )

    assert (state.input_tokens, state.output_tokens, state.cost_usd, state.turn) == (20, 10, 0.75, 2)


def test_initial_state_is_empty() -> None:
    assert fold("r", []) == RunState("r")


def test_an_adopted_run_has_the_authority_of_its_new_host() -> None:
    adopted = RunAdopted(
        provider="gemini",
        model="gemini-2.5-pro",
        profile="strict",
        sandbox="bubblewrap",
        reading_sandbox="kernel",
        workspace="/elsewhere",
        limits=Limits(max_turns=3),
        pins={"settings": "0" * 64},
        seal="sealed",
    )

    state = folded(started(), adopted)

    assert state.started is not None
    for name in ("provider", "model", "profile", "sandbox", "reading_sandbox", "workspace", "limits", "pins", "seal"):
        assert getattr(state.started, name) == getattr(adopted, name), name
