"""Replies of a dry run: the plan, without a model, a process or a socket.

The run goes through the same phases as a live one. Instead of the first model call, the best candidate takes charge, so
that its disclosure is selected and budgeted. Instead of the second one, the run ends with the plan.
"""

import json

from msgspec.structs import replace
from pydantic import JsonValue

from metier.context.budget import FittedPrompt
from metier.decisions import ActionStep
from metier.engine.decide import ToolPolicy
from metier.engine.model.prompt import get_offer
from metier.engine.services import Services
from metier.engine.state.run_state import RunState
from metier.messages import ModelReply, ToolCallPart, Usage
from metier.providers.base import ModelRequest
from metier.providers.facts import cost_usd
from metier.values import dump_fields


def answer_dry_run(state: RunState, services: Services, *, fitted: FittedPrompt, request: ModelRequest) -> ModelReply:
    """Return a reply in place of the model's. It uses no tokens."""
    likely = [c.skill_name for c in state.candidates if c.score >= services.skills.prefilter_min_score]
    best = likely[0] if likely else ""
    if best and not state.skill:
        reason = "Dry run: the best-ranked candidate, without asking a model"
        call = ToolCallPart(id="dry-run-1", name="use_skill", arguments={"skill": best, "reason": reason})
    else:
        plan = build_plan(state, services, fitted=fitted, request=request)
        result = json.dumps(plan, ensure_ascii=False, indent=2)
        call = ToolCallPart(id="dry-run-2", name="finish", arguments={"result": result})
    return ModelReply(
        parts=(call,), stop_reason="tool_calls", usage=Usage(), provider=services.provider.name, model=request.model
    )


def build_plan(
    state: RunState, services: Services, *, fitted: FittedPrompt, request: ModelRequest
) -> dict[str, JsonValue]:
    """Build the plan of a dry run: first request, estimated cost, and permissions."""
    usage = Usage(input_tokens=fitted.tokens, output_tokens=0)
    facts = services.facts.get(services.provider.name, request.model)
    # The length of the reply is unknown, so the cost is a range: without output, and with as much as is allowed.
    longest = replace(usage, output_tokens=request.max_tokens)
    return {
        "mode": "dry_run",
        "provider": services.provider.name,
        "model": request.model,
        "candidates": [dump_fields(candidate) for candidate in state.candidates],
        "strategy": state.strategy,
        "skill": state.skill,
        "disclosed": [dump_fields(piece.file) for piece in state.pieces],
        "predicted": {
            "input_tokens_per_request": fitted.tokens,
            "max_output_tokens_per_request": request.max_tokens,
            "layers": dict(fitted.layers),
            "tool_schema_tokens": fitted.tool_schema_tokens,
            "request_cost_usd": _rounded(cost_usd(usage, facts)),
            "request_cost_usd_at_most": _rounded(cost_usd(longest, facts)),
        },
        "tools": [
            _judge(spec.name, state, services) for spec in get_offer(state, services, disabled=state.disabled).tools
        ],
        "not_loaded": [*_list_toolsets(services), *services.not_listed],
    }


def _judge(tool: str, state: RunState, services: Services) -> JsonValue:
    action = ActionStep(type="call_tool", params={"tool": tool, "arguments": _foresee(tool, state, services)})
    if tool in ("use_skill", "ask_user", "finish"):
        action = ActionStep(type="call_skill" if tool == "use_skill" else tool)
    policy = services.policy
    # A rule about arguments could go either way, because the model has not chosen them yet.
    judge = policy.judge_tool if isinstance(policy, ToolPolicy) else policy.judge
    verdict = judge(action, skill=state.skill)
    return {
        "tool": tool,
        "verdict": verdict.decision,
        "reason": verdict.reason,
        "effect": services.policy.effect(action),
    }


def _foresee(tool: str, state: RunState, services: Services) -> dict[str, JsonValue]:
    """Return the arguments that are known in advance: the skill whose script would run."""
    package = services.skill_index.find(state.skill) if tool == "script_run" and state.skill else None
    if package is None:
        return {}
    entrypoint = package.definition.entrypoint
    script: dict[str, JsonValue] = {"script_name": entrypoint.script} if entrypoint is not None else {}
    return {"skill_name": package.definition.name, **script}


def _list_toolsets(services: Services) -> list[JsonValue]:
    """List skills with toolsets: their tools are only known after starting them, which a dry run does not."""
    return [
        package.definition.name for package in services.skill_index.packages.values() if package.definition.toolsets
    ]


def _rounded(price: float | None) -> float | None:
    return None if price is None else round(price, 6)
