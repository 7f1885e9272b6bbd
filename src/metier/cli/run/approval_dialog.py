"""Ask the person at the terminal about one call: yes, no, other arguments, always in this run, or why at all."""

import difflib
import json
import sys
from collections.abc import Awaitable, Callable
from dataclasses import dataclass

import anyio
from pydantic import JsonValue

from metier.cli.shared.output import printable, warn_line
from metier.engine.state import RunState
from metier.errors import UsageError
from metier.ids import find_user
from metier.runtime.approvals import ApprovalQuestion, Reply
from metier.runtime.changed_code import ChangedCode
from metier.runtime.reopening import FLAGS, Limit, RaisedLimits, build_raise, check_raise, find_limit

type ReadLine = Callable[[str], Awaitable[str]]
"""Shows a prompt and gives the line behind it. Raises `EOFError` when there is no more."""

CHOICES = "[y]es  [n]o  [e]dit  [a]lways in this run  [w]hy  [q]uit: "


@dataclass(frozen=True, slots=True)
class Prompter:
    """An `Asker` for the runtime. No answer leaves the run parked, to be decided with `agent approvals`."""

    read_line: ReadLine
    by: str

    async def __call__(self, question: ApprovalQuestion) -> Reply | None:
        for line in describe(question):
            warn_line(line)
        try:
            return await self._choose(question)
        except EOFError:
            return None

    async def _choose(self, question: ApprovalQuestion) -> Reply | None:
        while True:
            word = (await self.read_line(CHOICES)).strip().lower()
            match word:
                case "y" | "yes":
                    return Reply(decision="approved", by=self.by)
                case "n" | "no":
                    reason = (await self.read_line("Why not? (the model reads it) ")).strip()
                    return Reply(decision="denied", by=self.by, reason=reason)
                case "a" | "always":
                    return Reply(decision="approved", by=self.by, remember=True)
                case "e" | "edit":
                    arguments = await self._edit(question)
                    if arguments is not None:
                        return Reply(decision="approved", by=self.by, arguments=arguments)
                case "w" | "why":
                    for line in explain(question):
                        warn_line(line)
                case "q" | "quit":
                    return None
                case _:
                    warn_line("Answer with one of the letters")

    async def _edit(self, question: ApprovalQuestion) -> dict[str, JsonValue] | None:
        warn_line(f"now: {json.dumps(question.arguments, ensure_ascii=False)}")
        text = (await self.read_line("new arguments as JSON, empty to go back: ")).strip()
        if not text:
            return None
        try:
            arguments = parse_arguments(text)
        except ValueError as error:
            warn_line(f"Not JSON: {error}")
            return None
        wrong = await question.find_wrong_arguments(arguments)
        if wrong or not isinstance(arguments, dict):
            warn_line(f"These arguments cannot be used: {wrong}")
            return None
        return arguments


def find_asker() -> Prompter | None:
    """The dialog with the user; None where no person sits at a terminal."""
    # A process that was started with a closed stream has nothing there.
    streams = (sys.__stdin__, sys.__stderr__)
    if any(stream is None or stream.closed or not stream.isatty() for stream in streams):
        return None
    return Prompter(_read_line, find_user())


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


def render_edit(question: ApprovalQuestion) -> list[str]:
    """Line by line, the call of the model against the edited one."""
    if question.edited_arguments is None:
        return []
    before, after = (_write_arguments(each) for each in (question.arguments, question.edited_arguments))
    return list(difflib.unified_diff(before, after, "asked for by the model", "edited", lineterm=""))


def _write_arguments(arguments: dict[str, JsonValue]) -> list[str]:
    """Texts of several lines are compared by their lines."""
    lines: list[str] = []
    for name, value in arguments.items():
        written = value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
        lines += [f"{name}: {line}" for line in written.splitlines() or [""]]
    return lines


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
