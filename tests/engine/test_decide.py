"""A run's next action, in tables: equal states have equal actions."""

import pytest
from journals import (
    TablePolicy,
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
from msgspec.structs import replace

from metier.approval.profile import WRITE_ACCESS
from metier.approval.rules import Verdict
from metier.decisions import ActionStep, SkillCall
from metier.engine import actions as a
from metier.engine.decide import decide
from metier.engine.entries.entry import Entry
from metier.engine.entries.model import DecodeFailed, ProgressVerified, Rejection
from metier.engine.entries.question import ApprovalAsked, ApprovalDecided, InputAsked, InputGiven
from metier.engine.entries.run import RunFailed, RunFinished, RunPaused, RunStarted
from metier.engine.entries.skill import ContextDisclosed, HandedOff, SkillsRanked
from metier.engine.entries.step import DoubtResolved, FailureTold, StepInDoubt, StepRetried, StepStarted
from metier.engine.entries.task import CallPlanned, ChildRequest
from metier.messages import Spent

LOOK = tool("look", "c1")
LOOK_AGAIN = tool("look-again", "c2")
PUSH = tool("push", "c3")
ALLOW = TablePolicy()


def after_turn(turn: int = 1) -> list[Entry]:
    """Return the state after a complete turn with one read."""
    step = tool("look", f"t{turn}", n=str(turn))
    verified = ProgressVerified(following="CALL_LLM")
    return [*turn_of(step, turn=turn), intent(f"{turn}.1", step), ended(f"{turn}.1"), verified]


@pytest.mark.parametrize(
    ("entries", "action"),
    [
        ([], a.Wait()),
        ([started()], a.LoadCatalog()),
        (until_call()[:2], a.RankSkills()),
        (until_call()[:3], a.Disclose("")),
        (until_call(), a.CallModel(1)),
        ([*until_call(), asked(), replied()], a.Decode()),
        ([*until_call(), *turn_of(LOOK)], a.RunSteps(("1.1",))),
        ([*until_call(), *turn_of(question())], a.AskInput("1.1")),
        ([*until_call(), *turn_of(finish("yes"))], a.Finish("yes")),
        ([*until_call(), *turn_of(PUSH), intent("1.1", PUSH)], a.SettleDoubt("1.1")),
        ([*until_call(), *turn_of(LOOK), intent("1.1", LOOK), ended("1.1")], a.Proceed("CALL_LLM")),
        ([*until_call(), *after_turn(1)], a.CallModel(2)),
        ([*until_call(), RunPaused(pause="signal", reason="x")], a.Wait()),
        ([*until_call(), RunFailed(reason="x", message="y")], a.Wait()),
        ([*until_call(), *turn_of(finish()), RunFinished(result="")], a.Wait()),
    ],
)
def test_each_phase_has_its_next_action(entries: list[Entry], action: a.Action) -> None:
    assert decide(folded(entries), ALLOW) == action


@pytest.mark.parametrize("cut", range(1, 4))
def test_request_without_a_recorded_reply_is_repeated_in_the_same_turn(cut: int) -> None:
    repeats: list[Entry] = [asked(1)] * cut

    assert decide(folded(until_call(max_turns=1), repeats), ALLOW) == a.CallModel(1)


def test_repair_stays_in_the_same_turn_even_at_the_limit() -> None:
    bad = DecodeFailed(turn=1, reason="empty", message="", repair=True)

    state = folded(until_call(max_turns=1), asked(1), replied(), bad)

    assert decide(state, ALLOW) == a.CallModel(1, repair=True)


@pytest.mark.parametrize(
    ("reason", "told"), [("empty", "decision_invalid"), ("refusal", "refusal"), ("truncated", "truncated")]
)
def test_second_failure_to_decode_ends_the_run(reason: str, told: str) -> None:
    first = DecodeFailed(turn=1, reason=reason, message="no", repair=True)
    second = DecodeFailed(turn=1, reason=reason, message="still no", repair=False)

    state = folded(until_call(), asked(1), replied(), first, asked(1, repair=True), replied(), second)

    assert decide(state, ALLOW) == a.Fail(told, "still no")


@pytest.mark.parametrize("limit", [1, 2, 5])
def test_run_takes_at_most_max_turns(limit: int) -> None:
    turns = [entry for turn in range(1, limit + 1) for entry in after_turn(turn)]

    before = folded(until_call(max_turns=limit), turns[: 6 * (limit - 1)])
    after = folded(until_call(max_turns=limit), turns)

    assert decide(before, ALLOW) == a.CallModel(limit)
    assert decide(after, ALLOW) == a.Fail(
        "max_turns_exceeded", f"The run took {limit} turns, which is the limit", "escalated"
    )


@pytest.mark.parametrize(("cost", "is_over"), [(0.99, False), (1.0, True), (1.01, True)])
def test_cost_limit_stops_before_the_next_request(cost: float, is_over: bool) -> None:
    state = folded(
        until_call(max_cost_usd=1.0),
        turn_of(LOOK, cost=cost),
        intent("1.1", LOOK),
        ended("1.1"),
        ProgressVerified(following="CALL_LLM"),
    )

    action = decide(state, ALLOW)

    message = f"The run cost {cost:.4f} USD, which is over the limit"
    assert action == (a.Fail("budget_exceeded", message, "escalated") if is_over else a.CallModel(2))


@pytest.mark.parametrize(
    ("actions", "group"),
    [
        ((LOOK, LOOK_AGAIN), ("1.1", "1.2")),
        ((LOOK, LOOK_AGAIN, PUSH), ("1.1", "1.2")),
        ((LOOK, PUSH, LOOK_AGAIN), ("1.1",)),
        ((PUSH, LOOK), ("1.1",)),
        ((LOOK, use_skill("a")), ("1.1",)),
        ((LOOK, finish()), ("1.1",)),
    ],
)
def test_only_consecutive_reads_run_concurrently(actions: tuple[ActionStep, ...], group: tuple[str]) -> None:
    assert decide(folded(until_call("a"), turn_of(*actions)), ALLOW) == a.RunSteps(group)


def test_a_read_that_needs_approval_does_not_run_with_the_others() -> None:
    state = folded(until_call(), turn_of(LOOK, LOOK_AGAIN))

    assert decide(state, TablePolicy(asks=frozenset({"look-again"}))) == a.RunSteps(("1.1",))
    assert decide(state, TablePolicy(denies=frozenset({"look-again"}))) == a.RunSteps(("1.1",))


def test_verdicts_determine_the_next_action() -> None:
    state = folded(until_call(), turn_of(PUSH))

    assert decide(state, TablePolicy(asks=frozenset({"push"}))) == a.AskApproval("1.1", "push is asked for")
    assert decide(state, TablePolicy(denies=frozenset({"push"}))) == a.RefuseStep(
        "1.1", "push is denied", verdict="deny"
    )


@pytest.mark.parametrize(
    ("decision", "action"),
    [
        ("approved", a.RunSteps(("1.1",))),
        ("denied", a.RefuseStep("1.1", "The approval was denied", verdict="ask")),
        ("expired", a.RefuseStep("1.1", "The approval was expired", verdict="ask")),
    ],
)
def test_decided_approval_is_not_asked_for_again(decision: str, action: a.Action) -> None:
    state = folded(
        until_call(),
        turn_of(PUSH),
        ApprovalAsked(approval_id="x", step_id="1.1", arguments_hash="h", reason="r"),
        convert({"approval_id": "x", "step_id": "1.1", "decision": decision}, ApprovalDecided),
    )

    assert decide(state, TablePolicy(asks=frozenset({"push"}))) == action


def test_identical_call_is_refused_after_the_allowed_repetitions() -> None:
    entries: list[Entry] = []
    for turn in range(1, 4):
        same = tool("push", f"t{turn}", hard="yes")
        entries += [*turn_of(same, turn=turn), intent(f"{turn}.1", same), ended(f"{turn}.1")]
        entries += [ProgressVerified(following="CALL_LLM")]

    fourth = folded(until_call(), entries, turn_of(tool("push", "t4", hard="yes"), turn=4))
    other = folded(until_call(), entries, turn_of(tool("push", "t4", hard="no"), turn=4))

    refused = decide(fourth, ALLOW)
    assert isinstance(refused, a.RefuseStep)
    assert refused.status == "skipped"
    assert decide(other, ALLOW) == a.RunSteps(("4.1",))


FAILED = [*turn_of(PUSH), intent("1.1", PUSH), broke("1.1")]
RETRIED = [*FAILED, StepRetried(step_id="1.1", reason="x"), intent("1.1", PUSH, attempt=2), broke("1.1")]
RETRY = a.RetryStep("1.1", "execution_failed")
FALL_BACK = a.HandOff("b", "Step 1.1 failed: it broke", fallback=True)
TELL = a.TellFailure("1.1", ("b",))
TELL_ALONE = a.TellFailure("1.1")
ABORT = a.Fail("step_failed", "Step 1.1 failed: it broke")


@pytest.mark.parametrize(
    ("policy", "then"),
    [
        ("retry_once_then_fallback_then_abort", (RETRY, TELL, TELL_ALONE)),
        ("fallback_then_abort", (TELL, TELL, TELL_ALONE)),
        ("retry_once_then_abort", (RETRY, ABORT, ABORT)),
        ("abort", (ABORT, ABORT, ABORT)),
    ],
)
def test_failure_policy_determines_the_next_action(policy: str, then: tuple[a.Action, a.Action, a.Action]) -> None:
    first, second, without_fallback = then
    assert decide(folded(until_call("b", on_step_failure=policy), FAILED), ALLOW) == first
    assert decide(folded(until_call("b", on_step_failure=policy), RETRIED), ALLOW) == second
    assert decide(folded(until_call(on_step_failure=policy), RETRIED), ALLOW) == without_fallback


def test_permanent_failure_is_not_retried() -> None:
    failed = [*turn_of(PUSH), intent("1.1", PUSH), broke("1.1", retryable=False)]

    assert decide(folded(until_call("b"), failed), ALLOW) == TELL


def test_a_call_that_fails_again_after_the_model_read_the_error_ends_the_run() -> None:
    told = [*FAILED, FailureTold(step_id="1.1", candidates=("b",)), ProgressVerified(following="CALL_LLM")]
    again = [*turn_of(PUSH, turn=2), intent("2.1", PUSH), broke("2.1")]
    other = tool("push", "t2", hard="no")
    corrected = [*turn_of(other, turn=2), intent("2.1", other), broke("2.1", retryable=False)]

    assert decide(folded(until_call("b"), told, again), ALLOW) == a.Fail("step_failed", "Step 2.1 failed: it broke")
    assert decide(folded(until_call("b"), told, corrected), ALLOW) == a.TellFailure("2.1", ("b",))


def test_a_candidate_below_the_minimum_score_is_not_a_fallback() -> None:
    weak = [replace(entry, min_score=100.1) if isinstance(entry, SkillsRanked) else entry for entry in until_call("b")]

    assert decide(folded(weak, RETRIED), ALLOW) == TELL_ALONE


def test_offline_runs_fall_back_once_and_not_to_an_earlier_skill() -> None:
    entries: list[Entry] = [
        *FAILED,
        HandedOff(from_skill="", to_skill="b", rationale="x", fallback=True),
        ContextDisclosed(),
        *turn_of(PUSH, turn=2),
        intent("2.1", PUSH),
        broke("2.1", retryable=False),
    ]

    offline = [
        replace(entry, provider="offline") if isinstance(entry, RunStarted) else entry
        for entry in until_call("b", "c", on_step_failure="fallback_then_abort")
    ]

    assert decide(folded(offline, FAILED), ALLOW) == FALL_BACK
    assert decide(folded(offline, entries), ALLOW) == a.TellFailure("2.1", ("c",))


def test_run_does_not_finish_over_a_failed_sibling() -> None:
    ran = [*turn_of(PUSH, finish()), intent("1.1", PUSH)]

    well = folded(until_call(), ran, ended("1.1"))
    badly = folded(until_call(), ran, ended("1.1", ok=False))

    assert decide(well, ALLOW) == a.Proceed("HANDOFF_OR_FINISH", "The model finished")
    assert decide(badly, ALLOW) == a.Proceed("CALL_LLM")


def test_run_does_not_finish_over_a_rejected_call() -> None:
    no = (Rejection(call_id="c9", tool="nope", code="unknown_tool", message="no"),)

    state = folded(until_call(), asked(), replied(finish()), decided(finish(), rejected=no))

    assert decide(state, ALLOW) == a.Proceed("CALL_LLM")


def test_abort_over_a_step_with_unknown_outcome_cancels_the_run() -> None:
    state = folded(
        until_call(),
        turn_of(PUSH),
        intent("1.1", PUSH),
        StepInDoubt(step_id="1.1", known="?"),
        DoubtResolved(step_id="1.1", answer="abort"),
    )

    action = decide(state, ALLOW)
    assert isinstance(action, a.Fail)
    assert action.status == "canceled"


def test_skill_selected_by_the_model_becomes_active_with_its_reason() -> None:
    first: list[Entry] = [
        *turn_of(use_skill("a")),
        intent("1.1", use_skill("a")),
        ended("1.1"),
        ProgressVerified(following="DISCLOSE_CONTEXT_STAGE"),
        ContextDisclosed(),
        *turn_of(use_skill("b"), turn=2),
        intent("2.1", use_skill("b")),
        ended("2.1"),
    ]

    state = folded(until_call("a", "b"), first)
    assert decide(state, ALLOW) == a.Proceed("HANDOFF_OR_FINISH", "Skill 'b' was called")

    handing = folded(until_call("a", "b"), first, ProgressVerified(following="HANDOFF_OR_FINISH"))
    assert decide(handing, ALLOW) == a.HandOff("b", "for b")


def test_new_skill_is_shown_before_the_model_is_asked_again() -> None:
    state = folded(until_call("a"), turn_of(use_skill("a")), intent("1.1", use_skill("a")), ended("1.1"))

    assert decide(state, ALLOW) == a.Proceed("DISCLOSE_CONTEXT_STAGE", "More of the skill is needed")


def test_run_stops_if_the_cost_of_its_only_skill_exceeds_the_limit() -> None:
    call = SkillCall(skill="namer", chain=("caller",))
    began = replace(started(max_cost_usd=1.0), order=ChildRequest(task="call it", call=call))
    invoke = use_skill("namer")
    asked_for = InputAsked(
        request_id="in", step_id="1.1", question="?", resumes=True, spent=Spent(input_tokens=1, cost_usd=1.5)
    )
    given = InputGiven(request_id="in", values={"colour": "red"})

    first = folded(began, CallPlanned(action=invoke))
    later = folded(began, CallPlanned(action=invoke), intent("1.1", invoke), asked_for, given)

    assert decide(first, ALLOW) == a.RunSteps(("1.1",))
    assert decide(later, ALLOW) == a.Fail(
        "budget_exceeded", "The run cost 1.5000 USD, which is over the limit", "escalated"
    )


READS = StepStarted(step_id="1.1", action=PUSH, effect="read", idempotency_key="k", verdict="allow", read_only=True)
REFUSED = StepRetried(step_id="1.1", reason="touch: Read-only file system", wants_write=True)


class ReadOnlyPolicy(TablePolicy):
    """A policy that allows `push` only in the read-only sandbox."""

    def judge(self, action: ActionStep, *, skill: str) -> Verdict:
        return Verdict(decision="allow", read_only=True)


@pytest.mark.parametrize(
    ("entries", "action"),
    [
        ([], a.RunSteps(("1.1",), (Verdict(decision="allow", read_only=True),))),
        # A crash during the attempt repeats it there; a crash before the question asks.
        ([READS], a.SettleDoubt("1.1")),
        (
            [READS, REFUSED],
            a.AskApproval("1.1", f"{WRITE_ACCESS}: touch: Read-only file system"),
        ),
    ],
)
def test_blocked_read_only_attempt_is_asked_about(entries: list[Entry], action: a.Action) -> None:
    state = folded([*until_call(), *turn_of(PUSH), *entries])

    assert decide(state, ReadOnlyPolicy()) == action
