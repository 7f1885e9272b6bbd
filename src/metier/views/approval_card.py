"""The approval card of a terminal: the call in plain words, its arguments, the rule that asks, the risk.

Pure. The dialog that asks for the decision is in the CLI.
"""

import json
from collections.abc import Iterator

from msgspec import Struct, field
from pydantic import JsonValue
from rich.text import Text

from metier.telemetry.sanitize import reveal, sanitize_line
from metier.tools.base import NO_CHANGE
from metier.views.call_line import build_line
from metier.views.diff import is_diff, wrap_diff
from metier.views.screen_lines import indent

MAX_LINES = 40
"""Maximum lines of an argument or a preview. The number of further lines is shown."""
MAX_LINE = 2_000
"""Characters of one line."""
_RISKS = {"high": "bold red", "medium": "yellow", "low": "green"}
_INDENT = "  "


class ApprovalCard(Struct, frozen=True, kw_only=True):
    """The content of a card, with secrets redacted."""

    approval_id: str
    tool: str
    arguments: dict[str, JsonValue] = field(default_factory=dict[str, JsonValue])
    preview: str = ""
    """The call's expected change, if its tool can show it."""
    reason: str = ""
    """The rule that asks, and its reason."""
    is_default: bool = False
    """True if the profile asks, because no rule matches."""
    risk: str = ""
    justification: str = ""
    expires_at: str = ""
    number: int = 1
    total: int = 1
    """The number of pending calls of the same reply."""
    is_edited: bool = False
    """True if a user edited the arguments."""


def render_card(card: ApprovalCard, *, width: int, most: int | None = MAX_LINES) -> list[Text]:
    """Render the lines of a card. At most `most` lines of a text are shown and the rest is counted; None shows all."""
    count = f" {card.number} of {card.total}" if card.total > 1 else ""
    head = Text.assemble((f"?{count} ", "bold yellow"), (describe_call(card), "bold"))
    risk = sanitize_line(card.risk)
    if risk:
        head.append(f" · {risk} risk", _RISKS.get(risk, ""))
    if card.is_edited:
        head.append("  (edited by you)", "yellow")
    lines = [head, *_list_body(card, width=width, most=most)]
    # The default is the normal case; `?` shows it.
    if card.reason and not card.is_default:
        lines.append(Text(f"{_INDENT}asked because: {sanitize_line(card.reason)}", "dim"))
    return lines


def render_background(card: ApprovalCard) -> list[Text]:
    """Render the text of `?`: the model's reason, the expiry, and the keys."""
    said = sanitize_line(card.justification) or "nothing"
    lines = [Text(f"{_INDENT}model's reason: {said}")]
    if card.reason and card.is_default:
        lines.append(Text(f"{_INDENT}asked because: {sanitize_line(card.reason)}"))
    if card.expires_at:
        lines.append(Text(f"{_INDENT}open until: {sanitize_line(card.expires_at)}"))
    lines.append(Text(f"{_INDENT}approval: {card.approval_id}, decided elsewhere with `agent approvals`"))
    return [*lines, *(Text(f"{_INDENT}{key}  {meaning}", "dim") for key, meaning in KEYS.items())]


KEYS = {
    "y": "run it, this once",
    "n": "don't run it; the model reads your reason",
    "e": "edit its arguments in your editor; the new call needs approval again",
    "a": "run it and don't ask again for similar calls, or save a rule for them",
    "l": "decide later; the run waits",
    "Y": "yes to all calls of this reply that wait",
    "N": "no to all of them",
}


def describe_call(card: ApprovalCard) -> str:
    """Describe the call in plain words."""
    given = card.arguments

    def name(key: str) -> str:
        return sanitize_line(reveal(str(given.get(key, ""))))

    match card.tool:
        case "Bash":
            return "Run a command"
        case "Write":
            # A change that removes no line replaces nothing.
            is_new = is_diff(card.preview) and not any(line.startswith("-") for line in _list_changes(card.preview))
            return f"{'Write' if is_new else 'Replace'} the file {name('path')}"
        case "Edit":
            return f"Change the file {name('path')}"
        case "WebFetch":
            return f"Fetch a page from the web: {name('url')}"
        case "script_run":
            return f"Run the script {name('script_name')} of skill {name('skill_name')}"
        case "delegate":
            return f"Hand work to agent {name('agent')}"
        case "run_task":
            return f"Run the task {name('task')}"
        case tool:
            server, slash, called = tool.partition("/")
            if slash:
                return f"Call {sanitize_line(called)} of the server {sanitize_line(server)}"
            return f"Call the tool {sanitize_line(tool)}"


def _list_changes(unified: str) -> Iterator[str]:
    return (line for line in unified.splitlines() if not line.startswith(("--- ", "+++ ")))


def _list_body(card: ApprovalCard, *, width: int, most: int | None) -> Iterator[Text]:
    if is_diff(card.preview):
        names_file = card.tool not in ("Write", "Edit")
        max_line = MAX_LINE if most is not None else None
        for line in wrap_diff(card.preview, width=width - 3, most=most, max_line=max_line, names_file=names_file):
            yield indent(line)
        return
    if card.tool in ("Write", "Edit") and card.preview == NO_CHANGE:
        yield Text(f"{_INDENT}{NO_CHANGE}")
        return
    if card.tool == "Bash" and isinstance(command := card.arguments.get("command"), str):
        yield from _list_lines("$ ", command, style="bold cyan", most=most)
        rest = {key: value for key, value in card.arguments.items() if key != "command"}
    else:
        rest = card.arguments
    for key, value in rest.items():
        written = value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
        yield from _list_lines(f"{sanitize_line(key)}: ", written, style="cyan", most=most)
    # The preview of a plain command only repeats it.
    repeated = card.tool == "Bash" and card.preview.partition("\n")[2].strip() == str(card.arguments.get("command"))
    if card.preview and not repeated:
        yield from _list_lines("", card.preview, style="", most=most)


def _list_lines(label: str, text: str, *, style: str, most: int | None) -> Iterator[Text]:
    """Render a text that a user decides about: lines are wrapped, and truncated only if they are extremely long."""
    # Revealed, not removed: a shell would still execute the characters that the user doesn't see.
    lines = reveal(text).splitlines() or [""]
    shown = lines if most is None else lines[:most]
    for number, line in enumerate(shown):
        lead = label if number == 0 else " " * len(label)
        over = len(line) - MAX_LINE if most is not None else 0
        cut = f"{line[:MAX_LINE]}… {over:,} more characters; ? shows all" if over > 0 else line
        yield Text.assemble(_INDENT, (lead, "dim"), (cut.expandtabs(4), style))
    if left := len(lines) - len(shown):
        yield Text(f"{_INDENT}… {left:,} more lines; ? shows all", "dim italic")


def name_call(card: ApprovalCard) -> str:
    """Return the call in one line."""
    return f"{sanitize_line(card.tool)}  {build_line(card.tool, card.arguments)}".rstrip()
