"""The cost of runs per model, agent, skill, task or day. Pure."""

from collections.abc import Iterable
from typing import Literal

from msgspec import Struct
from pydantic import JsonValue
from rich.text import Text

from metier.telemetry.amounts import format_cost, format_count, format_tokens
from metier.telemetry.excerpt import one_line
from metier.telemetry.sanitize import sanitize_line
from metier.views.run_view import Usage
from metier.views.screen_lines import fit

Grouping = Literal["model", "agent", "skill", "task", "day"]

_NAME_WIDTH = 32
_FULL, _EIGHTHS = "█", " ▏▎▍▌▋▊▉"


class Spent(Struct, frozen=True, kw_only=True):
    """The usage of model calls, with the properties that totals are grouped by."""

    model: str
    agent: str
    skill: str
    task: str
    day: str
    usage: Usage
    calls: int = 1


class Total(Struct, frozen=True, kw_only=True):
    """Total of one group."""

    name: str
    calls: int
    usage: Usage


def group_spending(spent: Iterable[Spent], by: Grouping) -> list[Total]:
    """Sum up the calls of each group: days in order, others with the highest cost first."""
    groups: dict[str, Total] = {}
    for each in spent:
        name: str = getattr(each, by)
        old = groups.get(name) or Total(name=name, calls=0, usage=Usage())
        groups[name] = Total(name=name, calls=old.calls + each.calls, usage=old.usage.plus(each.usage))
    if by == "day":
        return sorted(groups.values(), key=lambda total: total.name)
    return sorted(groups.values(), key=lambda total: (-total.usage.cost_usd, -total.usage.input_tokens, total.name))


def total_as_json(total: Total, *, name: str) -> dict[str, JsonValue]:
    """Return a total as JSON, with the name of its group in the field `name`."""
    usage = total.usage
    return {
        name: total.name,
        "calls": total.calls,
        "input_tokens": usage.input_tokens,
        "cached_tokens": usage.cached_tokens,
        "output_tokens": usage.output_tokens,
        "cost_usd": None if usage.known_cost_usd is None else round(usage.cost_usd, 6),
        "known_cost_usd": round(usage.cost_usd, 6),
        "calls_of_unknown_cost": usage.unpriced_calls,
    }


def render_totals(totals: list[Total], *, width: int) -> list[Text]:
    """Render a line per group with a bar of its cost, or of its tokens if no price is known."""
    by_cost = any(total.usage.cost_usd for total in totals)
    most = max((_measure(total, by_cost=by_cost) for total in totals), default=0) or 1
    names = [one_line(sanitize_line(total.name), _NAME_WIDTH) for total in totals]
    room = max(map(len, names), default=0)
    lines: list[Text] = []
    for name, total in zip(names, totals, strict=True):
        said = describe_usage(total.usage, calls=total.calls)
        bar_width = max(0, min(30, width - room - len(said) - 4))
        bar = _draw(_measure(total, by_cost=by_cost) / most, bar_width)
        line = Text.assemble(f"{name:<{room}}  ", (f"{bar:<{bar_width}}", "green"), "  " if bar_width else "", said)
        lines.append(fit(line, width))
    return lines


def describe_usage(usage: Usage, *, calls: int) -> str:
    """Render `$0.021   12.3k in (74 % cached)   410 out   3 calls`."""
    cost = format_cost(usage.known_cost_usd)
    if usage.unpriced_calls and usage.cost_usd:
        cost = f"{format_cost(usage.cost_usd)} and {usage.unpriced_calls} calls of unknown cost"
    share = f" ({100 * usage.cached_tokens / usage.input_tokens:.0f} % cached)" if usage.cached_tokens else ""
    tokens = f"{format_tokens(usage.input_tokens)} in{share}   {format_tokens(usage.output_tokens)} out"
    return f"{cost}   {tokens}   {format_count(calls, 'call')}"


def _measure(total: Total, *, by_cost: bool) -> float:
    usage = total.usage
    return usage.cost_usd if by_cost else float(usage.input_tokens + usage.output_tokens)


def _draw(share: float, width: int) -> str:
    eighths = round(share * width * 8)
    return (_FULL * (eighths // 8) + _EIGHTHS[eighths % 8]).rstrip()
