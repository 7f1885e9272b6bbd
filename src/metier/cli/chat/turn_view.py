"""The display of a conversation: its turns as runs, earlier turns, and the status line."""

import sys
from collections.abc import Generator, Sequence
from contextlib import contextmanager

from msgspec import Struct
from msgspec.structs import replace
from rich.text import Text

from metier.cli.chat.permission_modes import Mode, list_modes
from metier.cli.run.driver import list_observers
from metier.cli.run.live import ticking, write_answer
from metier.cli.shared.output import printable
from metier.events.partial import PartialObserver
from metier.providers.base import Observer
from metier.runtime.chat.chats import Chat
from metier.runtime.history.run_views import read_run_view, read_whole_step
from metier.runtime.records.index_rows import TYPED
from metier.runtime.status import RunStatus
from metier.telemetry.amounts import format_cost, format_tokens
from metier.telemetry.redaction import Redactor
from metier.telemetry.sinks import Sink
from metier.views.lines import EXCERPT_LINES, render_whole_step
from metier.views.live import LiveRun
from metier.views.painter import Painter
from metier.views.run_view import ContextUse, RunView, StepView, TextView

PAST_TURNS = 3
"""Number of past turns to show when a conversation is continued."""
TYPED_LINES = 60
"""Maximum lines of output of a command that the user typed."""
_PAST_LINES = 12
MAX_ECHOED = 20
"""Maximum number of lines of a message that are echoed."""


class ShownTurn(Struct, frozen=True):
    """The display of a running turn."""

    live: LiveRun | None
    """None if neither steps nor text are shown."""
    redactor: Redactor
    is_typed: bool = False
    """True for a shell command that the user typed: its step shows the output."""

    @property
    def sinks(self) -> Sequence[Sink]:
        return () if self.live is None else (self.live,)

    @property
    def observe(self) -> Observer | None:
        return self.live.observe if self.live is not None and self.live.shows_text else None

    @property
    def partials(self) -> Sequence[PartialObserver]:
        return list_observers(self.live)

    def finish(self, status: RunStatus) -> None:
        """Print the answer, unless it was printed while it arrived."""
        result = status.state.result
        if self.is_typed and self.live is not None and self.live.is_live:
            return
        if self.live is not None and self.live.shows_text:
            self.live.show_answer(result)
        elif result.strip():
            write_answer(printable(result, redactor=self.redactor))
            sys.stdout.flush()


class TurnView:
    """Shows turns on a painter, and expands steps of the last one."""

    def __init__(self, chat: Chat, painter: Painter, redactor: Redactor, *, quiet: bool) -> None:
        self._chat = chat
        self._painter = painter
        self._redactor = redactor
        self._quiet = quiet
        self._live: LiveRun | None = None
        self._expanded = 0
        """Number of expanded steps of the last turn, counted from its end."""
        self._cost = ""

    @property
    def view(self) -> RunView:
        """The view of the current or last turn; empty before the first."""
        return self._live.view if self._live is not None else RunView()

    @property
    def draft(self) -> str:
        """Return the text of an interrupted reply."""
        view = self.view
        if not view.calls or view.calls[-1].state != "failed":
            return ""
        texts = (item.text for item in reversed(view.items) if isinstance(item, TextView) and item.turn == view.turn)
        return next(texts, "")

    @contextmanager
    def begin(self, *, as_json: bool, is_typed: bool = False) -> Generator[ShownTurn]:
        shows_text = self._painter.is_live and sys.stdout.isatty() and not as_json
        if self._quiet and not shows_text:
            yield ShownTurn(None, self._redactor)
            return
        limit = TYPED_LINES if is_typed else EXCERPT_LINES
        self._live = LiveRun(
            self._painter,
            self._redactor,
            shows_text=shows_text,
            excerpt_lines=limit,
            interrupt_key="Esc",
            expand_advice="Ctrl-O shows all" if self._painter.is_live else "",
        )
        self._expanded = 0
        try:
            with ticking(self._live):
                yield ShownTurn(self._live, self._redactor, is_typed)
        finally:
            self._live.close()

    def echo(self, message: str) -> None:
        """Print a message of the user as a block with a bar at its left."""
        lines = printable(message, redactor=self._redactor).splitlines()
        text = Text("\n".join(lines[:MAX_ECHOED]), "bold")
        if len(lines) > MAX_ECHOED:
            text.append(f"\n… {len(lines) - MAX_ECHOED:,} more lines", "not bold dim italic")
        wrapped = self._painter.lay_out(text, width=max(10, self._painter.width - 3))
        self._painter.print(Text(), *(Text.assemble(("▌ ", "blue"), line) for line in wrapped), Text())

    async def expand(self) -> None:
        """Print the last step in full; if called again, the step before it."""
        steps = [(run.run_id, step) for run in self.view.walk() for step in run.steps if step.kind != "control"]
        if not steps:
            return
        self._expanded = self._expanded % len(steps) + 1
        whole = await self._read_whole(*steps[-self._expanded])
        self._painter.print(*render_whole_step(whole, width=self._painter.width))

    async def _read_whole(self, run_id: str, step: StepView) -> StepView:
        """Read a step with its whole output and diff, redacted."""
        whole = await read_whole_step(self._chat.runtime, run_id, step)
        diff = None if whole.diff is None else self._redactor.redact(whole.diff)
        return replace(whole, output=self._redactor.redact(whole.output), diff=diff)

    async def show_past(self) -> None:
        """Print the last turns of the conversation."""
        if self._chat.is_new:
            return
        turns = (await self._chat.list_turns())[-PAST_TURNS:]
        for state, turn in turns:
            self.echo(turn.said)
            self._painter.print(
                *(Text(f"  · {printable(note, redactor=self._redactor)}", "dim") for note in turn.notes)
            )
            lines = printable(turn.answer, redactor=self._redactor).strip().splitlines()
            shown = lines[-_PAST_LINES:]
            if len(lines) > len(shown):
                self._painter.print(Text(f"… {len(lines) - len(shown)} lines before", "dim italic"))
            is_typed = state.started is not None and state.started.provider == TYPED
            text = "\n".join(shown)
            self._painter.print(Text(text) if is_typed else self._painter.markdown(text))
        if turns:
            self._painter.print(Text())

    def forget(self) -> None:
        """Drop the last turn, because the conversation changed."""
        self._live = None

    async def get_context(self) -> ContextUse:
        """Return the content of the window in the latest turn of this session or the one before."""
        if self.view.context.limit:
            return self.view.context
        turns = await self._chat.list_turns()
        if not turns:
            return ContextUse()
        return (await read_run_view(self._chat.runtime, turns[-1][0].run_id, levels=0)).context

    async def load_spent(self) -> None:
        """Load the cost of the whole conversation for the status line."""
        spent = await self._chat.find_cost()
        self._cost = "" if spent == 0 else format_cost(spent)

    def describe_status(self, mode: Mode) -> str:
        """`model · agent · profile · mode · context 12 % of 32.0k · $0.021`; unknown parts are left out."""
        agent = self._chat.resolve()
        who = agent.definition.name if agent.definition else ""
        used = self.view.context
        share = f"context {100 * used.tokens / used.limit:.0f} % of {format_tokens(used.limit)}" if used.limit else ""
        shown = mode if mode in list_modes(agent.profile) else ""
        parts = (self._chat.answered_by, who, agent.profile, shown, share, self._cost)
        return " · ".join(part for part in parts if part)
