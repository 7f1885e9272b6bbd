"""Dispatch of an action to the function that carries it out. All effects are below it; it decides nothing."""

from typing import assert_never

from metier.engine import actions as a
from metier.engine.entries.model import ProgressVerified
from metier.engine.entries.run import RunFailed, RunFinished, RunPaused
from metier.engine.entries.skill import HandedOff
from metier.engine.execution.approval_requests import ask_again, ask_approval
from metier.engine.execution.child_execution import await_child, delegate, plan_task, stop_at_step
from metier.engine.execution.hook_execution import run_hooks
from metier.engine.execution.recovery import settle_doubt
from metier.engine.execution.result_checks import check_result
from metier.engine.execution.step_execution import ask_input, refuse_step, retry_step, run_steps, tell_failure
from metier.engine.journal import RunLog
from metier.engine.model.model_call import call_model, decode
from metier.engine.model.skill_selection import disclose, load_catalog, rank_skills
from metier.engine.services import Services


async def perform(action: a.Action, log: RunLog, services: Services) -> None:  # noqa: C901  one case per action
    match action:
        case a.LoadCatalog():
            await load_catalog(log, services)
        case a.RankSkills():
            await rank_skills(log, services)
        case a.Disclose():
            await disclose(action, log, services)
        case a.CallModel():
            await call_model(action, log, services)
        case a.Decode():
            await decode(log, services)
        case a.RunSteps():
            # Links are resolved right before the effects: they may lead elsewhere since the rules allowed the calls.
            if not await ask_again(action, log, services):
                await run_steps(action, log, services)
        case a.SettleDoubt():
            await settle_doubt(action, log, services)
        case a.RefuseStep():
            await refuse_step(action, log, services)
        case a.AskApproval():
            await ask_approval(action, log, services)
        case a.AskInput():
            await ask_input(action, log)
        case a.RetryStep():
            await retry_step(action, log)
        case a.TellFailure():
            await tell_failure(action, log)
        case a.RunHooks():
            await run_hooks(action, log, services)
        case a.PlanTask():
            await plan_task(log, services)
        case a.Delegate():
            await delegate(action, log, services)
        case a.AwaitChild():
            await await_child(log)
        case a.StopAtStep():
            await stop_at_step(action, log)
        case a.CheckResult():
            await check_result(action, log, services)
        case a.Wait():
            return
        case _:
            await _record_turn_end(action, log)


async def _record_turn_end(action: a.Proceed | a.HandOff | a.Finish | a.Fail | a.PauseAtLimit, log: RunLog) -> None:
    match action:
        case a.Proceed():
            log.infer(ProgressVerified(following=action.following, reason=action.reason))
        case a.HandOff():
            handed = HandedOff(
                from_skill=log.state.skill,
                to_skill=action.to_skill,
                rationale=action.rationale,
                fallback=action.fallback,
            )
            await log.record(handed)
        case a.PauseAtLimit():
            await log.record(RunPaused(pause="limit", limit=action.limit, reason=action.reason))
        case a.Finish():
            await log.record(RunFinished(result=action.result))
        case a.Fail():
            failed = RunFailed(reason=action.reason, message=action.message, status=action.status, result=action.result)
            await log.record(failed)
        case _:
            assert_never(action)
