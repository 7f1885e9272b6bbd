"""What a person sees of a turn: the answer while it grows, and one short line per step. Answers on stdout."""

import sys

from metier.cli.shared.output import printable, write_text
from metier.event_record import EventRecord
from metier.events import SkillStepExecuted
from metier.providers.base import Delta
from metier.telemetry.console import WORDINGS
from metier.telemetry.redaction import Redactor
from metier.telemetry.sanitize import sanitize, sanitize_line

SHOWN = frozenset({"skill_step_executed", "llm_retry_scheduled", "mcp_server_reported", "handoff", "skill_load_failed"})
_LONGEST = 120


class ChatView:
    """A sink and an observer. Text is streamed to a terminal only; elsewhere the whole answer is written at its end."""

    def __init__(self, redactor: Redactor, *, streams: bool, quiet: bool) -> None:
        self._redactor = redactor
        self._streams = streams
        self._quiet = quiet
        self._text = redactor.stream()
        self._shown = ""
        """What was shown of the reply under way, or of the last one."""
        self._is_open = False

    def write(self, record: EventRecord) -> None:
        if record.event_type == "llm_request_sent":
            self._text, self._shown = self._redactor.stream(), ""
        if record.event_type == "llm_response_received":
            self._show(self._text.close())
        if record.event_type in SHOWN and not self._quiet:
            self._end_line()
            sys.stderr.write(f"· {sanitize_line(' '.join(_describe(record).split()))[:_LONGEST]}\n")
            sys.stderr.flush()

    def close(self) -> None:
        self._end_line()

    def observe(self, delta: Delta) -> None:
        if not self._streams or delta.kind == "thinking":
            return
        if delta.kind == "restart":
            self._text, self._shown = self._redactor.stream(), ""
            self._end_line()
        else:
            self._show(self._text.feed(delta.text))

    def finish(self, result: str) -> None:
        """Write the answer, or what of it was not shown yet."""
        self._end_line()
        if not result.strip() or printable(result, redactor=self._redactor).strip() == sanitize(self._shown).strip():
            return
        write_text(result, redactor=self._redactor)
        sys.stdout.flush()

    def _show(self, text: str) -> None:
        if text and self._streams:
            self._shown += text
            sys.stdout.write(sanitize(text))
            sys.stdout.flush()
            self._is_open = not text.endswith("\n")

    def _end_line(self) -> None:
        if self._is_open:
            sys.stdout.write("\n")
            sys.stdout.flush()
            self._is_open = False


def _describe(record: EventRecord) -> str:
    if isinstance(record.payload, SkillStepExecuted):
        return f"{record.payload.tool or record.payload.action}: {record.payload.status}"
    wording = WORDINGS[record.event_type]
    return f"{wording.status} {wording.detail}".format(p=record.payload)
