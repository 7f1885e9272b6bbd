"""The cost of replies and runs, from the tokens that the vendor counted and the known prices. Pure."""

from metier.messages import ModelReply, Usage
from metier.providers.facts import FactBook, LongPrompt, ModelFacts, Prices

_MILLION = 1_000_000


def cost_usd(usage: Usage, facts: ModelFacts) -> float | None:
    """US dollars, or None where no price is known: an unknown price is not a free one."""
    if facts.prices is None:
        return None
    rates = _rates(usage, facts.prices)
    plain = usage.input_tokens - usage.cache_read_tokens - usage.cache_write_tokens
    total = (
        max(plain, 0) * rates.input
        + usage.cache_read_tokens * _or(rates.cache_read, rates.input)
        + usage.cache_write_tokens * _or(rates.cache_write, rates.input)
        + usage.output_tokens * rates.output
    )
    return total / _MILLION


def get_price(reply: ModelReply, *, asked: str, facts: FactBook) -> float:
    """By the model that answered; gateways call it what they like, so else by the one that was asked. 0 if unknown."""
    prices = (cost_usd(reply.usage, facts.find(reply.provider, name)) for name in (reply.model, asked))
    return next((price for price in prices if price is not None), 0.0)


def _rates(usage: Usage, prices: Prices) -> Prices | LongPrompt:
    long = prices.long_prompt
    return long if long is not None and usage.input_tokens > long.above_tokens else prices


def _or(price: float | None, otherwise: float) -> float:
    return otherwise if price is None else price


def find_cost(cost: float, *, tokens: int) -> float | None:
    """What a run cost so far; None where tokens were used and no price was counted for them."""
    return None if tokens and not cost else round(cost, 6)
