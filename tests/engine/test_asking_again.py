"""A step with a pending approval does not run, however the run was continued."""

from metier.approval.rules import ALLOW, Verdict
from metier.decisions import ActionStep
from metier.engine.actions import AskApproval
from metier.engine.decide import decide
from metier.engine.state.run_state import RunState
from metier.engine.state.steps import Step
from metier.tools.effects import Effect


class AllowAll:
    def judge(self, action: ActionStep, *, skill: str) -> Verdict:
        return ALLOW

    def effect(self, action: ActionStep) -> Effect:
        return "opaque"


def test_an_open_approval_is_asked_for_again_and_the_step_does_not_run() -> None:
    step = Step("1.1", ActionStep(type="call_tool", params={"tool": "Pay"}), phase="asking", approval_id="ap-1")
    state = RunState("r", phase="EXECUTE_STEP", status="in_progress", steps=[step])

    assert decide(state, AllowAll()) == AskApproval("1.1", "")
