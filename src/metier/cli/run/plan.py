"""The result of a dry run in words: what would be asked, what it would cost, what would be allowed."""

from typing import cast

from pydantic import JsonValue

from metier.runtime.outcome import Plan


def render_plan(plan: Plan) -> str:
    return "\n".join(_render_task(plan) if "steps" in plan else _render_run(plan))


def _render_task(plan: Plan) -> list[str]:
    """Every step with what a run of it foresees, then what they take together."""
    lines: list[str] = []
    for step in _rows(plan, "steps"):
        lines.append(f"step:       {step['file']}  {step['name']}  by {step['agent'] or 'the built-in agent'}")
        own = step["plan"]
        lines += [f"  {line}" for line in _render_run(own)] if isinstance(own, dict) else ["  nothing is foreseen"]
    predicted = _section(plan, "predicted")
    price, tokens = predicted.get("cost_usd"), predicted.get("input_tokens")
    cost = "unknown" if price is None else f"{price} USD, at most {predicted['cost_usd_at_most']} USD"
    lines.append(f"all steps:  {'unknown' if tokens is None else tokens} tokens for one request each")
    lines.append(f"cost:       {cost} for one request each; what earlier steps give is not counted")
    return lines


def _render_run(plan: Plan) -> list[str]:
    predicted = _section(plan, "predicted")
    candidates = [f"{each['skill_name']} ({each['score']})" for each in _rows(plan, "candidates")]
    files = [f"{each['path']} ({each['tokens']} tokens)" for each in _rows(plan, "disclosed")]
    price = predicted.get("request_cost_usd")
    cost = "unknown" if price is None else f"{price} USD, at most {predicted['request_cost_usd_at_most']} USD"
    lines = [
        f"model:      {plan['provider']}/{plan['model']}",
        f"candidates: {', '.join(candidates) or 'none'}",
        f"skill:      {plan['skill'] or 'none'}",
        f"disclosed:  {', '.join(files) or 'nothing'}",
        f"request:    {predicted['input_tokens_per_request']} tokens, {predicted['tool_schema_tokens']} of them tools",
        f"cost:       {cost} for one request",
    ]
    lines += [
        f"tool:       {tool['tool']}  {tool['verdict']}  {tool['reason']}".rstrip() for tool in _rows(plan, "tools")
    ]
    left = [str(name) for name in cast("list[JsonValue]", plan["not_loaded"])]  # as `engine.model.dry_run` writes it
    if left:
        lines.append(f"not loaded: the tools of {', '.join(left)}, which say what they offer by running")
    return lines


def _section(plan: Plan, name: str) -> Plan:
    return cast("Plan", plan[name])  # as `engine.model.dry_run` writes it


def _rows(plan: Plan, name: str) -> list[Plan]:
    return cast("list[Plan]", plan[name])  # as `engine.model.dry_run` writes it
