"""The dialog about a pending call: approve, deny, edit the arguments, always allow, or explain.

"Always" can be saved as a rule of the workspace; the user sees the rule before it is written.
"""

import json
import os
import select
import sys
import termios
import tty
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Protocol

import anyio
from msgspec import Struct, field
from msgspec.structs import replace
from pydantic import JsonValue
from rich.text import Text

from metier.approval.profile import is_profile_reason
from metier.cli.shared.context import current_workspace
from metier.cli.shared.editor import edit_in_thread
from metier.cli.shared.new_file import write_new_file
from metier.cli.shared.output import build_output_redactor, printable, warn_line
from metier.cli.trust import is_trusted_folder, renew_trust
from metier.definitions.policy_file import POLICY_FILE, read_policy_file
from metier.engine.state.run_state import RunState
from metier.errors import MetierError, UsageError
from metier.ids import get_user
from metier.runtime.answers import FLAGS, ChangedCode, Limit, RaisedLimits, build_raise, check_raise
from metier.runtime.approval_questions import ApprovalQuestion, Reply
from metier.runtime.documents import render_edit
from metier.runtime.status import find_limit
from metier.runtime.workspace.policy import add_rule, build_rule
from metier.telemetry.call_text import show_call, show_call_text
from metier.telemetry.excerpt import one_line
from metier.telemetry.sanitize import reveal
from metier.views.approval_card import ApprovalCard, name_call, render_background, render_card
from metier.views.painter import Painter, build_painter

_HEAD = "Edit the values below the names, save and close. To keep the call as it is, change nothing or empty the file."


def render_arguments(arguments: Mapping[str, JsonValue]) -> str:
    mark = _choose_mark(arguments)
    lines = [f"{mark} {_HEAD}"]
    for name, value in arguments.items():
        text = value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
        lines += [f"{mark} {name}:", text]
    return "\n".join(lines) + "\n"


def parse_edited(sheet: str, before: Mapping[str, JsonValue]) -> dict[str, JsonValue]:
    """Parse the edited text of `render_arguments`. Raises `UsageError` for an argument that the call does not have."""
    mark = sheet.partition(" ")[0]
    if not sheet.strip():
        return {**before}
    if not mark or mark.strip("=") or len(mark) < len(_MARK):
        raise UsageError("The first line is missing", hint="Do not change the lines with ===")
    values: dict[str, list[str]] = {}
    name = ""
    for line in sheet.removesuffix("\n").split("\n")[1:]:
        if line.startswith(f"{mark} ") and line.endswith(":"):
            name = line[len(mark) + 1 : -1]
            values[name] = []
        elif name:
            values[name].append(line)
    if unknown := [key for key in values if key not in before]:
        raise UsageError(f"The call has no argument {unknown[0]!r}")
    return {key: _read(key, "\n".join(values[key]), before[key]) for key in before if key in values}


_MARK = "==="


def _choose_mark(arguments: Mapping[str, JsonValue]) -> str:
    """Return a mark that no line of the arguments starts with."""
    mark = _MARK
    texts = [value for value in arguments.values() if isinstance(value, str)]
    while any(line.startswith(mark) for text in texts for line in text.split("\n")):
        mark += "="
    return mark


def _read(name: str, text: str, before: JsonValue) -> JsonValue:
    if isinstance(before, str):
        return text
    try:
        value: JsonValue = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise UsageError(f"The argument {name!r} is not JSON: {error}") from error
    return value


type ReadKey = Callable[[str, str], Awaitable[str]]
"""Show a prompt and return one of the given keys. Raises `EOFError` if there is no answer."""


async def save_rule(tool: str, arguments: dict[str, JsonValue], *, read_key: ReadKey) -> bool:
    """Show a rule for similar calls and save it if the user agrees. The current run keeps its rules.

    Returns False if nothing was written.
    """
    workspace = current_workspace()
    rule = build_rule(tool, arguments)
    try:
        policy = read_policy_file(workspace).decode("utf-8")
        text = add_rule(policy, rule, file=POLICY_FILE, root=str(workspace))
    except (MetierError, UnicodeDecodeError) as error:
        warn_line(error.message if isinstance(error, MetierError) else f"{POLICY_FILE} is not UTF-8")
        if isinstance(error, MetierError) and error.hint:
            warn_line(error.hint)
        return False
    warn_line(f"This is added to {POLICY_FILE} and applies to all later runs here:")
    warn_line("")
    for line in rule.splitlines():
        warn_line(f"    {line}")
    warn_line("")
    if await read_key("Add it? [y]es  [n]o: ", "yn") != "y":
        warn_line("Not added")
        return False
    # Asked before writing: afterwards the policy counts as changed since it was trusted.
    was_trusted = is_trusted_folder(workspace)
    try:
        write_new_file(workspace / POLICY_FILE, text, overwrite=True)
    except MetierError as error:
        warn_line(error.message)
        return False
    if was_trusted:
        renew_trust(workspace)
    else:
        warn_line("This folder is not trusted, so its allow rules are ignored; see `agent trust`")
    warn_line(f"Added to {POLICY_FILE}")
    return True


type ReadLine = Callable[[str], Awaitable[str]]
"""Show a prompt and return the typed line. Raises `EOFError` at the end of the input."""

ESCAPE, END_OF_INPUT = "\x1b", "\x04"
_WORDS = {
    "yes": "y",
    "no": "n",
    "edit": "e",
    "always": "a",
    "later": "l",
    "quit": "l",
    "q": "l",
    "why": "?",
    "w": "?",
    "back": "b",
}
CHOICES = "[y]es  [n]o  [e]dit  [a]lways  [l]ater  [?]: "
CHOICES_OF_MANY = "[y]es  [n]o  [e]dit  [a]lways  [Y] yes to all {count}  [N] no to all  [l]ater  [?]: "


class Edit(Protocol):
    """Open a text in the user's editor. Returns None if it is unchanged. Raises `UsageError`."""

    async def __call__(self, text: str, *, suffix: str) -> str | None: ...


class Prompter(Struct, frozen=True):
    """An `Asker` that asks at the terminal. Without an answer the run pauses until `agent approve` or `agent deny`."""

    read_line: ReadLine
    by: str
    painter: Painter | None = None
    """Stream on which calls are shown. Default: stderr."""
    edit: Edit | None = None
    """If None, the user types new arguments as JSON."""
    lasting: str = "in this run"
    """The scope of "always", as the user reads it."""
    press_key: ReadKey | None = None
    """If None, the user types a letter or a word and Enter."""
    shown: set[str] = field(default_factory=set[str])
    """Approvals whose calls are printed already."""

    async def __call__(self, question: ApprovalQuestion) -> Reply | None:
        """Print the other calls that "yes to all" includes, then this call, and ask for a decision."""
        for each in (*question.others, question):
            if each is question or each.row.approval_id not in self.shown:
                self._print(Text(), *self._render(each, number=each.number, total=each.total))
            self.shown.add(each.row.approval_id)
        try:
            return await self._choose(question)
        except EOFError:
            return None

    async def read_key(self, prompt: str, keys: str) -> str:
        """Read one of the keys, or a whole word such as `yes`. Raises `EOFError`."""
        if self.press_key is not None:
            return await self.press_key(prompt, keys)
        while True:
            word = (await self.read_line(prompt)).strip()
            key = word if word in tuple(keys) else _WORDS.get(word.lower(), word.lower())
            if len(key) == 1 and key in keys:
                return key
            warn_line("Answer with one of the letters; ? shows help" if "?" in keys else "Answer with one letter")

    async def _choose(self, question: ApprovalQuestion) -> Reply | None:
        """Ask until there is a decision. Edited arguments are shown and asked about again."""
        edited: dict[str, JsonValue] | None = None
        while True:
            is_many = bool(question.others) and edited is None
            choices = CHOICES_OF_MANY.format(count=len(question.others) + 1) if is_many else CHOICES
            name = f"{self._name(question)}\n" if question.total > 1 else ""
            key = await self.read_key(name + choices, "yneal?qYN" if is_many else "yneal?q")
            reply: Reply | None = None
            match key:
                case "y" | "Y":
                    reply = Reply(decision="approved", by=self.by, arguments=edited, is_for_all=key == "Y")
                case "n" | "N":
                    reason = (await self.read_line("Reason (the model sees it): ")).strip()
                    reply = Reply(decision="denied", by=self.by, reason=reason, is_for_all=key == "N")
                case "a":
                    reply = await self._always(question, edited)
                case "e":
                    edited = await self._edit(question, edited or question.arguments) or edited
                case "?":
                    self._explain(question, edited)
                case _:
                    return None
            if reply is not None:
                return reply

    def _name(self, question: ApprovalQuestion) -> str:
        """`Write  a.txt (1 of 3)`."""
        call = one_line(name_call(build_card(question)), self._get_painter().width - 12)
        return f"{call} ({question.number} of {question.total})"

    async def _always(self, question: ApprovalQuestion, edited: dict[str, JsonValue] | None) -> Reply | None:
        """Approve similar calls too: in this scope, or in all runs by a rule."""
        key = await self.read_key(f"Always: [c] {self.lasting}  [s]ave a rule for every run here  [b]ack: ", "csb")
        if key == "b":
            return None
        if key == "s" and not await save_rule(question.tool, edited or question.arguments, read_key=self.read_key):
            return None
        return Reply(decision="approved", by=self.by, arguments=edited, remember=True)

    async def _edit(self, question: ApprovalQuestion, now: dict[str, JsonValue]) -> dict[str, JsonValue] | None:
        try:
            arguments = await self._read_arguments(now)
        except ValueError as error:
            warn_line(f"Invalid JSON: {error}")
            return None
        except UsageError as error:
            warn_line(error.message)
            return None
        if arguments is None:
            warn_line("Nothing changed")
            return None
        problem = await question.get_wrong_arguments(arguments)
        if problem or not isinstance(arguments, dict):
            warn_line(f"Invalid arguments: {problem}")
            return None
        preview = await question.preview(arguments)
        self._print(Text(), *self._render(question, arguments=arguments, preview=preview))
        return arguments

    async def _read_arguments(self, now: dict[str, JsonValue]) -> JsonValue:
        """Let the user edit the arguments. Returns None if they are unchanged. Raises `ValueError`, `UsageError`."""
        if self.edit is not None:
            sheet = await self.edit(render_arguments(now), suffix=".txt")
            return None if sheet is None else {**parse_edited(sheet, now)}
        warn_line(f"now: {json.dumps(now, ensure_ascii=False)}")
        text = (await self.read_line("new arguments as JSON, empty to go back: ")).strip()
        return parse_arguments(text) if text else None

    def _explain(self, question: ApprovalQuestion, edited: dict[str, JsonValue] | None) -> None:
        card = build_card(question, arguments=edited)
        painter = self._get_painter()
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
        return render_card(card, width=self._get_painter().width)

    def _print(self, *lines: Text) -> None:
        self._get_painter().print(*lines)

    def _get_painter(self) -> Painter:
        return self.painter or build_painter(sys.stderr)


def build_card(
    question: ApprovalQuestion, *, arguments: dict[str, JsonValue] | None = None, preview: str = ""
) -> ApprovalCard:
    """Build the card of a question, or of the user's edited call. Known secrets are masked."""
    asked, redactor = question.asked, build_output_redactor()
    shown = {name: show_call(value, redactor) for name, value in (arguments or question.arguments).items()}
    diff = (asked.preview if asked else "") if arguments is None else preview
    return ApprovalCard(
        approval_id=question.row.approval_id,
        tool=question.tool,
        arguments=shown,
        preview=show_call_text(diff, redactor),
        reason=redactor.redact(asked.reason) if asked else "",
        is_default=asked is not None and is_profile_reason(asked.reason),
        risk=asked.risk if asked else "",
        justification=redactor.redact(asked.justification) if asked else "",
        expires_at=asked.expires_at if asked else "",
        is_edited=arguments is not None,
    )


def find_asker() -> Prompter | None:
    """Return the dialog, or None without a terminal."""
    # A stream that the caller closed is None.
    streams = (sys.__stdin__, sys.__stderr__)
    if any(stream is None or stream.closed or not stream.isatty() for stream in streams):
        return None
    press = None if sys.platform == "win32" else _press_key
    return Prompter(_read_line, get_user(), build_painter(sys.stderr), edit_in_thread, press_key=press)


async def ask_for_more(state: RunState, prompter: Prompter) -> RaisedLimits | None:
    """Ask whether a run that reached a limit continues, and with which limit; None if it doesn't."""
    limit, suggested = find_limit(state), build_raise(state)
    if limit is None or state.failure is None:
        return None
    warn_line(f"\n{state.failure.message} ({state.failure.reason})")
    prompt = f"Continue with {FLAGS[limit]} {getattr(suggested, limit):g}? [y]es  [n]o  or another number: "
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
    """Ask whether a run continues with changed skill files and return the user's name; None if it stops."""
    warn_line(f"\n{changed.sentence}; the old files are gone")
    while True:
        try:
            word = (await prompter.read_line("Continue with the new files? [y]es  [n]o: ")).strip().lower()
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
    """Describe the exact call and the changes it would make."""
    asked = question.asked
    risk = f" (risk: {asked.risk})" if asked is not None and asked.risk else ""
    lines = ["", f"approval {question.row.approval_id}: {question.tool}{risk} wants to run with"]
    lines += [f"  {name}: {_shown(value)}" for name, value in question.arguments.items()] or ["  no arguments"]
    if asked is not None and asked.preview:
        lines += ["", *reveal(asked.preview).splitlines(), ""]
    return lines


def describe_edit(question: ApprovalQuestion) -> list[str]:
    """Describe the arguments that the approver edited; nothing if they didn't."""
    edited = question.edited_arguments
    if edited is None:
        return []
    lines = [f"  {name}: {_shown(value)}" for name, value in edited.items()] or ["  no arguments"]
    return ["edited by the approver to run with", *lines, "", *render_edit(question), ""]


def explain(question: ApprovalQuestion) -> list[str]:
    """Explain which rule asks, and the model's reason for the call."""
    asked = question.asked
    if asked is None:
        return ["why: unknown"]
    expires = [f"expires: {asked.expires_at}"] if asked.expires_at else []
    return [f"why: {asked.reason}", f"model's reason: {asked.justification or 'nothing'}", *expires]


def parse_arguments(text: str) -> JsonValue:
    """Parse JSON. Raises `ValueError`, also for JSON that is nested too deeply for Python."""
    try:
        value: JsonValue = json.loads(text)
    except RecursionError as error:
        raise ValueError("too deeply nested") from error
    return value


def _shown(value: JsonValue) -> str:
    text = reveal(value if isinstance(value, str) else json.dumps(value, ensure_ascii=False))
    return text.replace("\n", "\n    ")


async def _read_line(prompt: str) -> str:
    sys.stderr.write(printable(prompt))
    sys.stderr.flush()
    # Wait in the event loop: it keeps the run's lease alive, and Ctrl-C works at once. A thread in `readline` would
    # keep the process alive until Enter is pressed. A terminal becomes readable when a line is complete.
    if sys.platform == "win32":
        line = await anyio.to_thread.run_sync(sys.stdin.readline, abandon_on_cancel=True)
    else:
        await anyio.wait_readable(sys.stdin)
        line = sys.stdin.readline()
    if not line:
        raise EOFError
    return line


async def _press_key(prompt: str, keys: str) -> str:
    """Read one key, without Enter. Raises `EOFError` for Ctrl-D and Esc. Ctrl-C still sends a signal."""
    terminal = sys.stdin.fileno()
    before = termios.tcgetattr(terminal)
    # Before the prompt is shown: in line mode the terminal would swallow an early Ctrl-D.
    # TCSADRAIN keeps keys that were typed ahead; the default, TCSAFLUSH, would discard them.
    tty.setcbreak(terminal, termios.TCSADRAIN)
    try:
        sys.stderr.write(printable(prompt))
        sys.stderr.flush()
        while True:
            await anyio.wait_readable(terminal)
            # Not through `sys.stdin`, whose buffer would swallow keys typed for the next question.
            typed = os.read(terminal, 1).decode("ascii", "replace")
            if typed == ESCAPE and _skip_sequence(terminal):
                continue
            if typed in ("", END_OF_INPUT, ESCAPE):
                raise EOFError
            # As typed first, because `Y` and `N` are answers of their own; otherwise they mean `y` and `n`.
            if known := [key for key in (typed, typed.lower()) if key in keys]:
                return known[0]
    finally:
        termios.tcsetattr(terminal, termios.TCSADRAIN, before)
        sys.stderr.write("\n")
        sys.stderr.flush()


def _skip_sequence(terminal: int) -> bool:
    """Read the rest of an arrow or function key. Returns False for Esc alone."""
    has_more = False
    # A terminal sends all bytes of a key at once, so nothing is waiting after Esc alone.
    while select.select([terminal], [], [], 0)[0]:
        has_more, byte = True, os.read(terminal, 1)
        if byte.isalpha() or byte in (b"~", b""):
            break
    return has_more
