"""The live display of a run: folds events, redacts arriving text, and prints finished items.

A running step is in the region at the bottom with a spinner and is printed when it ends. Text is printed block by
block; the region also shows the incomplete block, the checklist and active agents.
"""

from collections import deque
from collections.abc import Callable, Iterator, Sequence
from datetime import UTC, datetime
from typing import Literal

from msgspec.structs import replace
from rich.console import RenderableType
from rich.text import Text

from metier.events.partial import Partial
from metier.events.record import EventRecord
from metier.events.step import SkillStepExecuted
from metier.providers.base import Delta
from metier.telemetry.live_text import LiveText
from metier.telemetry.redaction import Redactor
from metier.telemetry.sanitize import sanitize
from metier.views.blocks import BlockSplitter
from metier.views.closing import render_closing
from metier.views.diff import render_change
from metier.views.fold import add_text, drop_text, fold, with_answer
from metier.views.lines import (
    EXCERPT_LINES,
    is_counted,
    list_checklist,
    render_agent,
    render_agent_result,
    render_checklist,
    render_note,
    render_output,
    render_step,
    render_waiting,
)
from metier.views.painter import Painter
from metier.views.run_view import Item, NoteView, RunView, StepView, TextView
from metier.views.screen_lines import indent

FRAMES_PER_SECOND = 10
# Wider than every closing line.
NO_EDGE = 1_000
MAX_CHANGE = 20
"""Lines of a diff below the step that made it."""
MAX_CHECKLIST = 12

type Block = Literal["line", "block"]
"""Printed items are separated by a blank line, except two of the kind `line`."""


def _now() -> datetime:
    return datetime.now(UTC)


class LiveRun:
    """A sink of events and an observer of replies, for a run and its child runs."""

    def __init__(  # noqa: PLR0913 - each is a choice of the interface that shows the run
        self,
        painter: Painter,
        redactor: Redactor,
        *,
        verbosity: int = 0,
        shows_text: bool = True,
        excerpt_lines: int = EXCERPT_LINES,
        interrupt_key: str = "Ctrl-C",
        expand_advice: str = "",
        clock: Callable[[], datetime] = _now,
    ) -> None:
        """`shows_text`: show the model's text as it arrives; if False, the caller prints the answer."""
        self._excerpt_lines = excerpt_lines
        self._interrupt_key = interrupt_key
        self._expand_advice = expand_advice
        self.view = RunView()
        self._painter = painter
        self._redactor = redactor
        self._verbosity = verbosity
        self.shows_text = shows_text
        self._clock = clock
        self._text = TextStream(redactor)
        self._outputs: dict[tuple[str, str], OutputTail] = {}
        """Output of running steps, by run and step."""
        self._printed: dict[str, int] = {}
        """Number of printed items of each run, in order."""
        self._below = ""
        """The run of the last printed step."""
        self._ahead: set[tuple[str, int]] = set()
        """Items that were printed before an earlier one that still runs."""
        self._frame = 0
        self._painted_at = 0.0
        self._last: Block | None = None
        """The kind of the last thing printed."""
        self._has_blocks = painter.is_live and verbosity == 0
        """Child runs are shown as one block each, and the plan as a checklist."""
        self._closed: set[str] = set()
        """Child runs whose block is printed."""
        self._printed_plan = list_checklist(self.view)

    @property
    def is_live(self) -> bool:
        """True at a terminal, where lines can be redrawn."""
        return self._painter.is_live

    @property
    def is_busy(self) -> bool:
        """True while something in the region moves by itself."""
        return self._painter.is_live and (bool(self._text.rest) or self._is_working())

    @property
    def is_reading(self) -> bool:
        """True while text is held back that may turn out to be harmless."""
        return self.shows_text and self._text.is_holding

    def follow(self, past: RunView) -> None:
        """Continue the view of a resumed run, without printing its past again."""
        if self.view.run_id:
            return
        self.view = past
        for run in past.walk():
            settled = [_is_settled(item) for item in run.items]
            # A step that waits is printed when it ends, which is after an earlier process printed the rest.
            self._printed[run.run_id] = first = [*settled, False].index(False)
            self._ahead |= {(run.run_id, number) for number in range(first, len(settled)) if settled[number]}
        # An earlier process has printed their blocks.
        self._closed = {run.run_id for run in past.walk() if run.is_over}

    def write(self, record: EventRecord) -> None:
        if record.event_type in ("llm_response_received", "llm_request_failed") and record.run_id == self.view.run_id:
            # Before the event is folded: the rest of the reply comes before the steps that follow from it.
            self._take_text(self._text.close())
            self._print_blocks(self._text.take_blocks(is_end=True))
        before = self.view
        self.view = fold(self.view, record)
        if record.event_type == "llm_request_sent":
            self._text = TextStream(self._redactor)
        if isinstance(record.payload, SkillStepExecuted):
            self._outputs.pop((record.run_id, record.payload.step_id), None)
        if record.event_type == "approval_requested":
            # The chat or command prints the approval card itself.
            self._last = "block"
        if record.event_type == "child_run_started" and not self._has_blocks:
            self._print_new_children(before)
        self._print_items(record.run_id)
        if self._has_blocks:
            self._print_agents()
            if record.event_type == "plan_updated" and all(item.is_over for item in list_checklist(self.view)):
                self._print_checklist()
        self._paint()

    def observe(self, delta: Delta) -> None:
        """Take text of the run itself; child runs are shown by their steps."""
        # A delta does not name its run: while a child runs, it may be the text of the child.
        if delta.kind == "thinking" or any(child.status == "in_progress" for child in self.view.children):
            return
        if delta.kind == "restart":
            self._restart()
            return
        self._take_text(self._text.feed(delta.text))
        if self.shows_text and self._painter.is_live:
            self._print_blocks(self._text.take_blocks())
            # A fast model sends hundreds of pieces per second; the next frame shows them together.
            self._paint(is_urgent=False)

    def show_partial(self, partial: Partial) -> None:
        """Take output of a running program, or text of a reply that another process receives."""
        if partial.kind != "output":
            self.observe(Delta(partial.kind, partial.text))
        elif self._painter.is_live:
            self._outputs.setdefault((partial.run_id, partial.step_id), OutputTail()).add(partial.text)
            self._paint(is_urgent=False)

    def tick(self) -> None:
        """Draw the next frame. Held-back text that nothing followed for a moment is shown if it contains no secret."""
        self._frame += 1
        if self.is_reading:
            self._take_text(self._text.pause())
        self._paint()

    def close(self) -> None:
        self._print_checklist()
        self._painter.close()

    def finish(self, result: str) -> None:
        """Print the answer, unless it was shown while it arrived, and the closing line."""
        self.show_answer(result)
        self.show_closing()

    def show_answer(self, result: str) -> None:
        """Print the answer, unless it was shown while it arrived."""
        self.view = with_answer(self.view, result)
        if self.shows_text and result.strip() and not self.has_shown(result):
            self._print_text(result)

    def show_closing(self) -> None:
        self._painter.show(())
        self._print_checklist()
        # Lines in a file are not truncated.
        width = self._painter.width if self._painter.is_live else NO_EDGE
        self._print([render_closing(self.view, width=width)])

    def has_shown(self, result: str) -> bool:
        """Return True if the last reply was shown and is this text."""
        # Compared in the form in which the reply was shown.
        return self._text.shown.strip() == self._redactor.redact(sanitize(result)).strip()

    def show_all(self, view: RunView) -> None:
        """Print a whole view with all child runs."""
        self.view, self._has_blocks = view, False
        for run in view.walk():
            self._print_items(run.run_id, is_all=True)

    def _take_text(self, text: str) -> None:
        self.view = add_text(self.view, text)

    def _restart(self) -> None:
        # Printed lines can't be taken back, so the user is told that the reply starts again.
        if self._text.has_printed:
            note = NoteView(
                turn=self.view.turn, level="warning", text="the connection was lost; the reply begins again"
            )
            self._print([render_note(note, width=self._painter.width)], "line")
        self._text = TextStream(self._redactor)
        self.view = drop_text(self.view)
        self._paint()

    def _print_blocks(self, blocks: list[str]) -> None:
        if self.shows_text and self._painter.is_live:
            for block in blocks:
                self._print([self._painter.markdown(block)])

    def _print_text(self, text: str) -> None:
        if self._painter.is_live:
            # Through the same stream as arriving text, so that both are split, redacted and hidden in the same way.
            whole = TextStream(self._redactor)
            whole.feed(text)
            whole.close()
            for block in whole.take_blocks(is_end=True):
                self._print([self._painter.markdown(block)])
        else:
            self._print([self._painter.markdown(self._redactor.redact(sanitize(text)))])

    def _print_new_children(self, before: RunView) -> None:
        """Print the heading of a new child run."""
        for run in self.view.walk():
            if before.find_child(run.run_id) is None:
                self._print_heading(run)

    def _print_heading(self, run: RunView) -> None:
        depth = self._get_depth(run.run_id)
        text = f"↳ {run.agent or 'agent'}: {run.task}"
        note = NoteView(turn=0, level="heading", text=" ".join(text.split()))
        width = self._painter.width - 2 * (depth - 1)
        self._print([indent(render_note(note, width=width), depth - 1)], "line")
        self._below = run.run_id

    def _print_heading_again(self, run: RunView) -> None:
        """Repeat the heading of a child run if the lines before it belong to another one that runs in parallel."""
        parent = self.view.find_child(run.parent_run_id)
        siblings = parent.children if parent is not None and run.run_id != self.view.run_id else ()
        if any(each.run_id != run.run_id and each.find_child(self._below) for each in siblings):
            self._print_heading(run)
        self._below = run.run_id

    def _print_items(self, run_id: str, *, is_all: bool = False) -> None:
        run = self.view.find_child(run_id)
        if run is None or (self._has_blocks and run_id != self.view.run_id):
            return
        depth = self._get_depth(run_id)
        first = self._printed.get(run_id, 0)
        for number in range(first, len(run.items)):
            item = _without_answer(run.items[number], run)
            if (run_id, number) in self._ahead or not (is_all or _is_settled(item)):
                continue
            self._ahead.add((run_id, number))
            if rendered := list(self._render_item(item, self._painter.width - 2 * depth)):
                self._print_heading_again(run)
                is_line = len(rendered) == 1 and not isinstance(item, TextView)
                self._print([indent(line, depth) for line in rendered], "line" if is_line else "block")
        while (run_id, first) in self._ahead:
            self._ahead.discard((run_id, first))
            first += 1
        self._printed[run_id] = first

    def _print_agents(self) -> None:
        """Print one block for each child run that ended."""
        for child in self.view.children:
            if child.is_over and child.run_id not in self._closed:
                self._closed.add(child.run_id)
                width = self._painter.width
                rendered = [render_agent(child, width=width), *render_agent_result(child, width=width)]
                self._print(rendered, "line" if len(rendered) == 1 else "block")

    def _print_checklist(self) -> None:
        """Print the plan if it changed since it was printed."""
        items = list_checklist(self.view)
        if self._has_blocks and items != self._printed_plan:
            self._print(render_checklist(items, width=self._painter.width))
            self._printed_plan = items

    def _render_item(self, item: Item, width: int) -> Iterator[Text]:
        match item:
            case NoteView():
                if (item.level != "detail" or self._verbosity) and not (item.level == "plan" and self._has_blocks):
                    yield render_note(item, width=width)
            case StepView() if self._has_blocks and item.child_run_id and item.state == "succeeded":
                return  # the blocks of its child runs tell it
            case StepView():
                if item.kind != "control" or self._verbosity or item.state not in ("succeeded", "running"):
                    yield render_step(item, width=width)
                    change = (
                        render_change(item, width=width, most=MAX_CHANGE, advice=self._expand_advice)
                        if self._painter.is_live
                        else []
                    )
                    if change or self._verbosity or not is_counted(item):
                        yield from change or render_output(
                            item, width=width, most=self._excerpt_lines, advice=self._expand_advice
                        )
            case TextView():
                # A terminal printed the text while it arrived, if this process received it.
                if not self._text.has_printed or not self.shows_text or not self._painter.is_live:
                    yield Text(item.text)

    def _print(self, rendered: Sequence[RenderableType], kind: Block = "block") -> None:
        is_apart = self._painter.is_live and self._last is not None and not kind == self._last == "line"
        self._painter.print(*([Text()] if is_apart else []), *rendered)
        self._last = kind

    def _paint(self, *, is_urgent: bool = True) -> None:
        if not self._painter.is_live:
            return
        now = self._clock().timestamp()
        if not is_urgent and now - self._painted_at < 1 / FRAMES_PER_SECOND:
            return  # the next frame shows it
        self._painted_at = now
        self._painter.show(self._list_region())

    def _is_working(self) -> bool:
        """Return False while the user decides an approval, so that nothing moves."""
        waits = [run.waiting.kind for run in self.view.walk() if run.waiting is not None and not run.is_over]
        return bool({"model", "retry", "step"} & set(waits)) and "approval" not in waits

    def _list_region(self) -> list[Text]:
        if not self._is_working():
            return []
        now, width = self._clock(), self._painter.width - 1
        hint = f" · {self._interrupt_key} interrupts"
        groups: list[list[Text]] = []
        for run in self.view.walk():
            depth = self._get_depth(run.run_id)
            # Room for the hint on any of the lines, because it is on the last one.
            room = width - 2 * depth - len(hint)
            if self._has_blocks and depth and not run.is_over:
                head = render_agent(run, width=room + 2, now=now, frame=self._frame)
                groups.append([indent(head, depth - 1)])
            running = [
                step
                for step in run.steps[-_MAX_RUNNING:]
                if step.state == "running"
                and step.kind != "control"
                # The blocks of its child runs are shown instead.
                and not (self._has_blocks and step.child_run_id)
            ]
            for step in running:
                line = render_step(step, width=room, now=now, frame=self._frame)
                output = self._list_output(run, step, most=MAX_TAIL_LINES if len(running) == 1 else 1)
                groups.append([indent(each, depth) for each in (line, *output)])
            if (waits := render_waiting(run, width=room, now=now, frame=self._frame)) is not None:
                groups.append([indent(waits, depth)])
        if groups:
            groups[-1][0].append(hint, "dim")
        tail = self._list_tail(width) if self.shows_text else []
        lines = [line for group in groups[-_MAX_RUNNING:] for line in group]
        region = [*tail, *lines, *self._list_plan(width)]
        # The blank line between printed lines and the region.
        return [Text(), *region] if region and self._last == "block" and not tail else region

    def _list_plan(self, width: int) -> list[Text]:
        items = list_checklist(self.view)
        if not self._has_blocks or items == self._printed_plan:
            return []
        # At most a third of the screen, or a long plan would push the running steps off it.
        room = min(MAX_CHECKLIST, max(3, self._painter.height // 3))
        return [indent(line, 1) for line in render_checklist(items, width=width - 2, room=room)]

    def _list_output(self, run: RunView, step: StepView, *, most: int) -> list[Text]:
        """Return the last output lines of a running step."""
        tail = self._outputs.get((run.run_id, step.step_id))
        return [Text(f"    {line}", "dim") for line in tail.list_lines(most)] if tail is not None else []

    def _list_tail(self, width: int) -> list[Text]:
        """Render the end of the block that is arriving, as much as fits on the screen."""
        rest = self._text.rest
        if not rest.strip():
            return []
        room = max(2, self._painter.height - _MAX_RUNNING - len(self._list_plan(width)) - 4)
        lines = self._painter.lay_out(self._painter.markdown(rest.strip("\n")), width=width)[-room:]
        return [Text(), *lines] if self._last is not None else lines

    def _get_depth(self, run_id: str) -> int:
        depth, run = 0, self.view.find_child(run_id)
        while run is not None and run.run_id != self.view.run_id:
            depth, run = depth + 1, self.view.find_child(run.parent_run_id)
        return depth


_MAX_RUNNING = 8
"""Maximum lines of the region."""


def _is_settled(item: Item) -> bool:
    return not isinstance(item, StepView) or item.is_over


def _without_answer(item: Item, run: RunView) -> Item:
    """Drop the output of a task's last step: it is the run's answer, which is printed separately."""
    is_last = bool(run.task_steps) and run.task_steps[-1].state in ("running", "succeeded")
    if is_last and isinstance(item, StepView) and item.state == "succeeded":
        return replace(item, output="", output_lines=0)
    return item


# Models without tool calls reply with a JSON decision, some of them in a fence.
_JSON_STARTS = ("{", "```json")
MAX_TAIL_LINES = 5


class OutputTail:
    """The last lines of a running program's output."""

    def __init__(self) -> None:
        self._lines: deque[str] = deque(maxlen=MAX_TAIL_LINES)
        self._rest = ""

    def add(self, text: str) -> None:
        # The driver redacted it, but a watcher reads it from a file that others could have written.
        *lines, self._rest = sanitize(self._rest + text).split("\n")
        self._lines.extend(line for line in lines if line.strip())

    def list_lines(self, most: int) -> list[str]:
        lines = [*self._lines, self._rest] if self._rest.strip() else [*self._lines]
        return lines[-most:]


class TextStream:
    """One reply. Takes the model's text and returns it without secrets."""

    def __init__(self, redactor: Redactor) -> None:
        self._stream = LiveText(redactor)
        self._blocks = BlockSplitter()
        self._ready: list[str] = []
        self.shown = ""
        """Text shown so far."""
        self.has_printed = False
        """True if blocks were returned for printing."""

    @property
    def rest(self) -> str:
        """Return the incomplete block."""
        return "" if self._is_decision() else self._blocks.rest

    def feed(self, text: str) -> str:
        """Return the text that can be shown now, without secrets and control characters."""
        return self._take(self._stream.feed(text))

    @property
    def is_holding(self) -> bool:
        """Return True while arrived text is held back."""
        return self._stream.is_holding

    def pause(self) -> str:
        """Return held-back text that can be shown because nothing followed it for a moment."""
        return self._take(self._stream.pause())

    def close(self) -> str:
        return self._take(self._stream.close())

    def take_blocks(self, *, is_end: bool = False) -> list[str]:
        """Return the complete blocks; at the end of the reply also the last one."""
        if self._is_decision():
            return []
        ready, self._ready = self._ready, []
        if is_end:
            ready += self._blocks.close()
        self.has_printed = self.has_printed or bool(ready)
        return ready

    def _take(self, clean: str) -> str:
        self.shown += clean
        self._ready += self._blocks.feed(clean)
        return clean

    def _is_decision(self) -> bool:
        """Return True for a JSON decision, whose steps are shown instead."""
        return self.shown.lstrip().startswith(_JSON_STARTS)
