"""The closing line of a run: status, turns, tokens, cost, time, ID. Pure."""

from collections.abc import Iterator

from rich.text import Text

from metier.telemetry.amounts import format_cost, format_count, format_seconds, format_tokens
from metier.views.run_view import RunView
from metier.views.screen_lines import fit

_STYLES = {"completed": "green", "paused": "yellow", "input_required": "yellow", "in_progress": "cyan"}
_WORDS = {"input_required": "waiting for input", "in_progress": "in progress"}
_SEPARATOR = " · "


def render_closing(view: RunView, *, width: int) -> Text:
    """Render one line. On a narrow screen it has fewer parts instead of being wrapped."""
    first, *rest = next(
        (each for each in _list_wordings(view) if _measure(each) < width),
        [_name_status(view), f"run {_shorten(view.run_id)}"],
    )
    text = Text(first, _STYLES.get(view.status, "red"))
    for part in rest:
        text.append(_SEPARATOR, "dim")
        text.append(part, "dim")
    return fit(text, max(1, width - 1))


def _list_wordings(view: RunView) -> Iterator[list[str]]:
    """List variants, each shorter than the one before: a short ID, no cached share, no unknown cost."""
    yield _list_parts(view, view.run_id)
    short = _shorten(view.run_id)
    yield _list_parts(view, short)
    yield _list_parts(view, short, with_cached=False)
    yield [part for part in _list_parts(view, short, with_cached=False) if part != format_cost(None)]


def _measure(parts: list[str]) -> int:
    return sum(map(len, parts)) + len(_SEPARATOR) * (len(parts) - 1)


def _shorten(run_id: str) -> str:
    # The last part only tells runs apart that started at the same time; commands accept a prefix.
    return run_id.rpartition("-")[0] or run_id


def _name_status(view: RunView) -> str:
    return _WORDS.get(view.status, view.status or "not started")


def _list_parts(view: RunView, run_id: str, *, with_cached: bool = True) -> list[str]:
    usage = view.total_usage
    parts = [_name_status(view), format_count(view.total_turns, "turn")]
    if usage.input_tokens or usage.output_tokens:
        cached = f" ({format_tokens(usage.cached_tokens)} cached)" if usage.cached_tokens and with_cached else ""
        parts += [f"{format_tokens(usage.input_tokens)} in{cached}", f"{format_tokens(usage.output_tokens)} out"]
        parts.append(format_cost(usage.known_cost_usd))
    if seconds := get_seconds(view):
        parts.append(format_seconds(seconds))
    return [*parts, f"run {run_id}"]


def get_seconds(view: RunView) -> float:
    """Return the duration of the run up to its last event."""
    if view.duration_ms:
        return view.duration_ms / 1000
    if view.started_at is None or view.updated_at is None:
        return 0.0
    return max(0.0, (view.updated_at - view.started_at).total_seconds())
