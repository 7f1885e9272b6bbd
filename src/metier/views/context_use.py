"""The layers in the model's context window, as lines with bars. Pure."""

from rich.text import Text

from metier.views.closing import format_tokens
from metier.views.run_view import ContextUse

_BAR = 30


def render_context(used: ContextUse, *, width: int) -> list[Text]:
    """Render a line per layer, the largest first."""
    limit = max(used.limit, 1)
    rows = [*used.layers, *([("tool descriptions", used.tool_schema_tokens)] if used.tool_schema_tokens else [])]
    rows = sorted((row for row in rows if row[1]), key=lambda row: -row[1])
    room = max((len(name) for name, _ in rows), default=0)
    bar_width = max(0, min(_BAR, width - room - 22))
    lines = [
        Text(f"{format_tokens(used.tokens)} of {format_tokens(used.limit)} tokens, {100 * used.tokens / limit:.0f} %")
    ]
    for name, tokens in rows:
        filled = min(bar_width, round(bar_width * tokens / limit) or 1)
        line = Text.assemble(
            f"{name:<{room}}  ",
            ("█" * filled, "green"),
            ("░" * (bar_width - filled), "dim"),
            f"  {format_tokens(tokens):>6}  {100 * tokens / limit:>3.0f} %",
        )
        line.truncate(width, overflow="ellipsis")
        line.no_wrap = True
        lines.append(line)
    return lines
