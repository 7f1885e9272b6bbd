"""What a run cost, or that it is not known: a model without a price is not a free one. Pure."""


def find_cost(cost: float, *, tokens: int) -> float | None:
    """What a run cost so far; None where tokens were used and no price was counted for them."""
    return None if tokens and not cost else round(cost, 6)
