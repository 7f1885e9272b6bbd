"""Ask the person at the terminal about calls that wait: yes, no, other arguments, always, or why at all."""

import json
import sys
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import replace
from typing import Protocol

import anyio
from pydantic import JsonValue
from rich.text import Text

from metier.cli.run.argument_sheet import parse_sheet, write_sheet
from metier.cli.run.saved_rule import save_rule
from metier.cli.shared.editor import edit_in_thread
from metier.cli.shared.output import build_output_redactor, printable, warn_line
from metier.dataclass import dataclass
from metier.engine.state import RunState
from metier.errors import UsageError
from metier.ids import find_user
from metier.runtime.documents import render_edit
from metier.runtime.questions.approvals import ApprovalQuestion, Reply
from metier.runtime.questions.changed_code import ChangedCode
from metier.runtime.questions.reopening import FLAGS, Limit, RaisedLimits, build_raise, check_raise, find_limit
from metier.views.approval_card import ApprovalCard, render_background, render_card
from metier.views.painter import Painter, build_painter

type ReadLine = Callable[[str], Awaitable[str]]
"""Shows a prompt and gives the line behind it. Raises `EOFError` when there is no more."""

CHOICES = "[y]es  [n]o  [e]dit  [a]lways  [q]uit  [?]: "
CHOICES_OF_MANY = "[y]es  [n]o  [e]dit  [a]lways  [Y] yes to all {count}  [N] no to all  [q]uit  [?]: "


class Edit(Protocol):
    """Opens a text in the person's editor; None where that changed nothing. Raises `UsageError`."""

    async def __call__(self, text: str, *, suffix: str) -> str | None: ...


@dataclass(frozen=True, slots=True)
class Prompter:
    """An `Asker` for the runtime. No answer leaves the run parked, to be decided with `agent approvals`."""

    read_line: ReadLine
    by: str
    painter: Painter | None = None
    """Where the calls are shown; stderr where none is given."""
    edit: Edit | None = None
    """Without it, new arguments are typed as JSON."""
    lasting: str = "in this run"
    """What "always" extends to."""

    async def __call__(self, question: ApprovalQuestion) -> Reply | None:
        every = (question, *question.others)
        for number, each in enumerate(every, start=1):
            self._print(Text(), *self._render(each, number=number, total=len(every)))
        try:
            return await self._choose(question)
        except EOFError:
            return None

    async def _choose(self, question: ApprovalQuestion) -> Reply | None:
        """Until there is an answer. Edited arguments are shown and asked about like those of the model."""
        edited: dict[str, JsonValue] | None = None
        many = len(question.others) + 1
        while True:
            choices = CHOICES if many == 1 or edited is not None else CHOICES_OF_MANY.format(count=many)
            word = (await self.read_line(choices)).strip()
            reply: Reply | None = None
            match word if word in ("Y", "N") and many > 1 else word.lower():
                case "y" | "yes":
                    reply = Reply(decision="approved", by=self.by, arguments=edited)
                case "Y":
                    reply = Reply(decision="approved", by=self.by, is_for_all=True)
                case "n" | "no" | "N":
                    reason = (await self.read_line("Why not? (the model reads it) ")).strip()
                    reply = Reply(decision="denied", by=self.by, reason=reason, is_for_all=word == "N" and many > 1)
                case "a" | "always":
                    reply = await self._always(question, edited)
                case "e" | "edit":
                    edited = await self._edit(question, edited or question.arguments) or edited
                case "?" | "w" | "why":
                    self._explain(question, edited)
                case "q" | "quit":
                    return None
                case _:
                    warn_line("Answer with one of the letters; ? tells what they do")
            if reply is not None:
                return reply

    async def _always(self, question: ApprovalQuestion, edited: dict[str, JsonValue] | None) -> Reply | None:
        """For a while, or as a rule that is shown before it is written."""
        prompt = f"[Enter] {self.lasting}  [s]ave a rule for every run here  [b]ack: "
        word = (await self.read_line(prompt)).strip().lower()
        if word in ("b", "back"):
            return None
        if word in ("s", "save") and not await save_rule(
            question.tool, edited or question.arguments, read_line=self.read_line
        ):
            return None
        return Reply(decision="approved", by=self.by, arguments=edited, remember=True)

    async def _edit(self, question: ApprovalQuestion, now: dict[str, JsonValue]) -> dict[str, JsonValue] | None:
        try:
            arguments = await self._read_arguments(now)
        except ValueError as error:
            warn_line(f"Not JSON: {error}")
            return None
        except UsageError as error:
            warn_line(error.message)
            return None
        if arguments is None:
            warn_line("Nothing was changed")
            return None
        wrong = await question.find_wrong_arguments(arguments)
        if wrong or not isinstance(arguments, dict):
            warn_line(f"These arguments cannot be used: {wrong}")
            return None
        preview = await question.preview(arguments)
        self._print(Text(), *self._render(question, arguments=arguments, preview=preview))
        return arguments

    async def _read_arguments(self, now: dict[str, JsonValue]) -> JsonValue:
        """None where nothing was changed. Raises `ValueError`, `UsageError`."""
        if self.edit is not None:
            sheet = await self.edit(write_sheet(now), suffix=".txt")
            return None if sheet is None else {**parse_sheet(sheet, now)}
        warn_line(f"now: {json.dumps(now, ensure_ascii=False)}")
        text = (await self.read_line("new arguments as JSON, empty to go back: ")).strip()
        return parse_arguments(text) if text else None

    def _explain(self, question: ApprovalQuestion, edited: dict[str, JsonValue] | None) -> None:
        card = build_card(question, arguments=edited)
        painter = self._find_painter()
        self._print(*render_card(card, width=painter.width, most=None), *render_background(card))

    def _render(
        self,
        question: ApprovalQuestion,
        *,
        number: int = 1,
        total: int = 1,
        arguments: dict[str, JsonValue] | None = None,
        preview: str = "",
    ) -> Sequence[Text]:
        card = replace(build_card(question, arguments=arguments, preview=preview), number=number, total=total)
        return render_card(card, width=self._find_painter().width)

    def _print(self, *lines: Text) -> None:
        self._find_painter().print(*lines)

    def _find_painter(self) -> Painter:
        return self.painter or build_painter(sys.stderr)


def build_card(
    question: ApprovalQuestion, *, arguments: dict[str, JsonValue] | None = None, preview: str = ""
) -> ApprovalCard:
    """What a person sees of a question, or of the call that they made of it. Known secrets are masked."""
    asked, redactor = question.asked, build_output_redactor()
    shown = {name: redactor.redact_value(value) for name, value in (arguments or question.arguments).items()}
    told = (asked.preview if asked else "") if arguments is None else preview
    return ApprovalCard(
        approval_id=question.row.approval_id,
        tool=question.tool,
        arguments=shown,
        preview=redactor.redact(told),
        reason=redactor.redact(asked.reason) if asked else "",
        risk=asked.risk if asked else "",
        justification=redactor.redact(asked.justification) if asked else "",
        expires_at=asked.expires_at if asked else "",
        is_edited=arguments is not None,
    )


def find_asker() -> Prompter | None:
    """The dialog with the user; None where no person sits at a terminal."""
    # A process that was started with a closed stream has nothing there.
    streams = (sys.__stdin__, sys.__stderr__)
    if any(stream is None or stream.closed or not stream.isatty() for stream in streams):
        return None
    return Prompter(_read_line, find_user(), build_painter(sys.stderr), edit_in_thread)


async def ask_for_more(state: RunState, prompter: Prompter) -> RaisedLimits | None:
    """Whether a run that reached a limit goes on, and with which; nothing where it does not."""
    limit, suggested = find_limit(state), build_raise(state)
    if limit is None or state.failure is None:
        return None
    warn_line(f"\n{state.failure.message} ({state.failure.reason})")
    prompt = f"Go on with {FLAGS[limit]} {getattr(suggested, limit):g}? [y]es  [n]o  or another number: "
    while True:
        try:
            word = (await prompter.read_line(prompt)).strip().lower()
        except EOFError:
            return None
        if word in ("y", "yes"):
            return suggested
        if word in ("", "n", "no", "q", "quit"):
            return None
        given = _parse_limit(word, limit)
        try:
            if given is not None:
                check_raise(state, given, run_id=state.run_id)
                return given
            warn_line("Answer with y, n or a number")
        except UsageError as error:
            warn_line(error.message)


async def ask_about_code(changed: ChangedCode, *, prompter: Prompter) -> str | None:
    """Who lets a run go on with files of skills that changed; nothing where it stops here."""
    warn_line(f"\n{changed.sentence}; the old files are not kept")
    while True:
        try:
            word = (await prompter.read_line("Go on with the new ones? [y]es  [n]o, stop here: ")).strip().lower()
        except EOFError:
            return None
        if word in ("y", "yes"):
            return prompter.by
        if word in ("", "n", "no", "q", "quit"):
            return None
        warn_line("Answer with y or n")


def _parse_limit(word: str, limit: Limit) -> RaisedLimits | None:
    try:
        match limit:
            case "max_turns":
                return RaisedLimits(max_turns=int(word))
            case "max_cost_usd":
                return RaisedLimits(max_cost_usd=float(word))
            case "timeout_seconds":
                return RaisedLimits(timeout_seconds=float(word)) if float(word) > 0 else None
    except ValueError:
        return None


def describe(question: ApprovalQuestion) -> list[str]:
    """The exact call and what it would change."""
    asked = question.asked
    risk = f" (risk: {asked.risk})" if asked is not None and asked.risk else ""
    lines = ["", f"approval {question.row.approval_id}: {question.tool}{risk} wants to run with"]
    lines += [f"  {name}: {_shown(value)}" for name, value in question.arguments.items()] or ["  no arguments"]
    if asked is not None and asked.preview:
        lines += ["", *asked.preview.splitlines(), ""]
    return lines


def describe_edit(question: ApprovalQuestion) -> list[str]:
    """The arguments that a person put in the place of the model's, and how they differ; nothing where none did."""
    edited = question.edited_arguments
    if edited is None:
        return []
    lines = [f"  {name}: {_shown(value)}" for name, value in edited.items()] or ["  no arguments"]
    return ["edited by a person to run with", *lines, "", *render_edit(question), ""]


def explain(question: ApprovalQuestion) -> list[str]:
    """Who asks, and what the model said it wants this for."""
    asked = question.asked
    if asked is None:
        return ["why: not known"]
    expires = [f"open until: {asked.expires_at}"] if asked.expires_at else []
    return [f"why: {asked.reason}", f"the model said: {asked.justification or 'nothing'}", *expires]


def parse_arguments(text: str) -> JsonValue:
    """Raises `ValueError`."""
    try:
        value: JsonValue = json.loads(text)
    except RecursionError as error:
        raise ValueError("it is nested too deeply") from error
    return value


def _shown(value: JsonValue) -> str:
    text = value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
    return text.replace("\n", "\n    ")


async def _read_line(prompt: str) -> str:
    sys.stderr.write(printable(prompt))
    sys.stderr.flush()
    # Waiting for a person must not stop the heartbeat of the lease, nor must the process wait for a line after Ctrl-C:
    # a thread that reads would keep it alive until Enter is pressed. A terminal is readable when a line is complete.
    if sys.platform == "win32":
        line = await anyio.to_thread.run_sync(sys.stdin.readline, abandon_on_cancel=True)
    else:
        await anyio.wait_readable(sys.stdin)
        line = sys.stdin.readline()
    if not line:
        raise EOFError
    return line
