"""The closing line of a run: status, turns, tokens, cost, time, ID. Also formats of numbers and lines. Pure."""

from collections.abc import Iterator

from rich.text import Text

from metier.views.run_view import RunView

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


def format_tokens(count: int) -> str:
    """Format a number of tokens: `410`, `12.3k`, `1.2M`."""
    if count < 1_000:
        return str(count)
    # From here on, one decimal would round to `1000.0k`.
    if count < 999_950:
        return f"{count / 1_000:.1f}k"
    return f"{count / 1_000_000:.1f}M"


def format_cost(cost_usd: float | None) -> str:
    """Format a cost: `$0.021`, with more decimals for small amounts. None is `cost unknown`."""
    if cost_usd is None:
        return "cost unknown"
    if cost_usd >= 1:
        return f"${cost_usd:,.2f}"
    if cost_usd >= 0.001 or cost_usd <= 0:
        return f"${cost_usd:.3f}"
    # As many decimals as the first digit needs: three would show a cheap call as free.
    zeros = len(f"{cost_usd:.12f}".partition(".")[2]) - len(f"{cost_usd:.12f}".partition(".")[2].lstrip("0"))
    return f"${cost_usd:.{min(9, zeros + 1)}f}"


def format_seconds(seconds: float) -> str:
    """Format a duration: `0.2 s`, `14 s`, `2 min 5 s`, `1 h 3 min`."""
    # From here on, one decimal would round to `10.0`.
    if seconds < 9.95:
        return f"{seconds:.1f} s"
    whole = round(seconds)
    if whole < 60:
        return f"{whole} s"
    if whole < 3600:
        return f"{whole // 60} min {whole % 60} s"
    return f"{whole // 3600:,} h {whole % 3600 // 60} min"


def format_age(seconds: float) -> str:
    """Format an age: `now`, `5 min`, `3 h`, `2 d`."""
    minutes = max(0, int(seconds)) // 60
    if minutes < 60:
        return f"{minutes} min" if minutes else "now"
    return f"{minutes // 60} h" if minutes < 24 * 60 else f"{minutes // (24 * 60):,} d"


def format_count(number: int, noun: str, plural: str = "") -> str:
    """Format a number with its noun: `1 run`, `2,000 runs`."""
    return f"{number:,} {noun if number == 1 else plural or f'{noun}s'}"


def fit(text: Text, width: int) -> Text:
    """Truncate to one screen line. Cut by characters first, because measuring a line of a megabyte takes too long."""
    if len(text) > 4 * width:
        text = text[: 4 * width]
    text.truncate(width, overflow="ellipsis")
    text.no_wrap = True
    return text


def indent(text: Text, depth: int = 1) -> Text:
    """Indent a line by two columns per level."""
    if not depth:
        return text
    indented = Text("  " * depth, no_wrap=text.no_wrap)
    indented.append_text(text)
    return indented
