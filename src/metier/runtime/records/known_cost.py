"""What a run cost, or that it is not known: a model without a price is not a free one. Pure."""

from metier.providers.known_cost import find_cost
from metier.providers.options import OFFLINE

TYPED = "typed"
"""Who answers a command that a person typed into a chat, as provider and as model."""


def find_listed_cost(cost_usd: float, *, turns: int, model: str) -> float | None:
    """The same for a row of the index, which does not count tokens: what no model answers uses none."""
    return find_cost(cost_usd, tokens=0 if model in (OFFLINE, TYPED) else turns)


def render_cost(cost: float | None) -> str:
    return "unknown cost" if cost is None else f"{cost:.4f} USD"
