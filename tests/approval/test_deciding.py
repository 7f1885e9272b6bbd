"""The engine's actions for a step that needs approval. Pure: a state in, an action out."""

from metier.approval.rules import Verdict
from metier.decisions import ActionStep, ModelDecision
from metier.engine import actions as a
from metier.engine.decide import decide
from metier.engine.entries.model import DecisionMade
from metier.engine.entries.question import ApprovalAsked, ApprovalDecided
from metier.engine.entries.run import RunResumed
from metier.engine.entries.step import StepFinished, StepRetried
from metier.engine.state.fold import apply
from metier.engine.state.run_state import RunState
from metier.tools.effects import Effect


class Asks:
    """A policy that asks about everything."""

    def judge(self, action: ActionStep, *, skill: str) -> Verdict:
        del action, skill
        return Verdict(decision="ask", reason="because")

    def effect(self, action: ActionStep) -> Effect:
        del action
        return "opaque"


def make_state() -> RunState:
    state = RunState("r1")
    step = ActionStep(type="call_tool", params={"tool": "Write", "arguments": {}})
    state.phase = "DECODE_DECISION"
    apply(state, DecisionMade(turn=1, decision=ModelDecision(planned_actions=(step,)), path="native"))
    return state


def ask(state: RunState, approval_id: str = "ap-1") -> None:
    apply(state, ApprovalAsked(approval_id=approval_id, step_id="1.1", arguments_hash="", reason=""))


def test_a_step_that_waits_for_an_answer_does_not_run_without_one() -> None:
    state = make_state()
    assert decide(state, Asks()) == a.AskApproval("1.1", "because")
    ask(state)

    # Nothing says that the run waits, as after a pause that somebody else ended.
    assert decide(state, Asks()) == a.AskApproval("1.1", "because")


def test_an_approval_covers_one_execution_and_a_retry_asks_again() -> None:
    state = make_state()
    ask(state)
    apply(state, ApprovalDecided(approval_id="ap-1", step_id="1.1", decision="approved"))
    assert decide(state, Asks()) == a.RunSteps(("1.1",))
    failed = StepFinished(step_id="1.1", status="failed", text="", counts_as_failure=True, retryable=True)
    apply(state, failed)
    apply(state, StepRetried(step_id="1.1", reason="failed"))

    assert decide(state, Asks()) == a.AskApproval("1.1", "because")


def test_a_disabled_tool_is_denied_despite_an_approval() -> None:
    state = make_state()
    ask(state)
    resumed = RunResumed(reason="", driver="", disabled_tools=("Write",))
    apply(state, resumed)
    apply(state, ApprovalDecided(approval_id="ap-1", step_id="1.1", decision="approved"))

    action = decide(state, Asks())

    reason = "Tool 'Write' is turned off in 'tool-access.json'"
    assert action == a.RefuseStep("1.1", reason, verdict="deny", rule="tool-access.json")
