"""The prompt of a turn: every layer with its source, size and price, and the end of the cached part."""

from fastapi import APIRouter
from msgspec import Struct
from starlette.responses import Response

from metier.errors import UsageError
from metier.providers.facts import Prices
from metier.runtime.history.prompts import ShownLayer, ShownPrompt, compare, show_turn
from metier.runtime.history.run_views import read_run_view
from metier.runtime.runs import Runtime
from metier.server.console.rendering import Here, PageRoute

router = APIRouter(include_in_schema=False, route_class=PageRoute)

COLOURS = 8


class LayerBar(Struct, frozen=True, kw_only=True):
    """One layer of the stacked bar."""

    layer: ShownLayer
    colour: int
    at: float
    width: float
    """Both in percent of all bytes."""
    first_byte: int
    is_cached: bool
    """It stands before the first byte that differs from the turn before."""
    was_cached: bool
    """The vendor counted at least the tokens up to its end as cached."""
    price_usd: float | None
    """Of its tokens, cached or not; None where no price is known."""


@router.get("/runs/{name}/prompt")
async def show_prompt(page: Here, name: str, turn: int | None = None) -> Response:
    runtime = page.state.runtime
    row = await runtime.find(name)
    view = await read_run_view(runtime, row.run_id, levels=0)
    turns = sorted({call.turn for call in view.calls})
    if not turns:
        raise UsageError("No model was asked in this run", hint="Its steps may be runs of their own")
    shown = await show_turn(runtime, row.run_id, turn=turn)
    before = await _find_before(runtime, row.run_id, shown, turns)
    difference = compare(before, shown) if before is not None else None
    shared = difference.offset if difference is not None else shown_bytes(shown) if before is not None else 0
    call = next((each for each in view.calls if each.turn == shown.turn), None)
    return await page.render(
        "prompt.html",
        "runs",
        run_id=row.run_id,
        task=row.task,
        shown=shown,
        turns=turns,
        call=call,
        before=before,
        difference=difference,
        broke_at=round(100 * shared / (shown_bytes(shown) or 1), 3) if before is not None else 0,
        bars=build_bars(shown, shared=shared, cached=call.usage.cached_tokens if call is not None else 0),
    )


async def _find_before(runtime: Runtime, run_id: str, shown: ShownPrompt, turns: list[int]) -> ShownPrompt | None:
    earlier = [each for each in turns if each < shown.turn]
    return await show_turn(runtime, run_id, turn=earlier[-1]) if earlier else None


def shown_bytes(shown: ShownPrompt) -> int:
    return sum(layer.bytes for layer in shown.layers)


def build_bars(shown: ShownPrompt, *, shared: int, cached: int = 0) -> tuple[LayerBar, ...]:
    """In the order in which they are sent.

    `shared` bytes are those of the turn before, which a cache can have; `cached` tokens are those that it had.
    """
    total = shown_bytes(shown) or 1
    bars: list[LayerBar] = []
    at = tokens = 0
    for number, layer in enumerate(shown.layers):
        tokens += layer.tokens
        was_cached = 0 < tokens <= cached
        bars.append(
            LayerBar(
                layer=layer,
                colour=number % COLOURS + 1,
                at=round(100 * at / total, 3),
                width=round(100 * layer.bytes / total, 3),
                first_byte=at,
                is_cached=at + layer.bytes <= shared,
                was_cached=was_cached,
                price_usd=_find_price(layer.tokens, shown.prices, is_cached=was_cached),
            )
        )
        at += layer.bytes
    return tuple(bars)


def _find_price(tokens: int, prices: Prices | None, *, is_cached: bool) -> float | None:
    if prices is None:
        return None
    rate = prices.cache_read if is_cached and prices.cache_read is not None else prices.input
    return tokens * rate / 1_000_000
