"""A chat session: read messages, run their turns and report their results until the user exits.

At a terminal the prompt stays visible during a turn, and messages typed meanwhile are queued. Elsewhere a line is read
after the previous turn has ended.
"""

import sys
from collections.abc import Awaitable, Sequence
from functools import partial
from typing import Literal, get_args

import anyio
from msgspec import Struct

from metier.cli.chat.permission_modes import CARRY_OUT, PLAN_NOTE, PermissionModes, list_modes
from metier.cli.chat.screen import Screen
from metier.cli.chat.slash_commands import ChatContext, ExitChat, Turn, run_command, runs_at_once
from metier.cli.chat.turn_view import TurnView
from metier.cli.run.approval_dialog import Prompter
from metier.cli.run.driver import describe_cause
from metier.cli.shared.failure import report
from metier.cli.shared.output import build_output_redactor, warn_line, write_json_line
from metier.cli.shared.signals import STEP_SECONDS, passing_signals, stop_process
from metier.engine.state.run_state import RunState
from metier.engine.stopper import Stopper
from metier.errors import MetierError, unwrapped
from metier.ids import get_user
from metier.runtime.answers import Answer
from metier.runtime.approval_questions import ApprovalQuestion, Reply
from metier.runtime.chat.chats import Chat, allow_always, is_always
from metier.runtime.chat.commands import MARK
from metier.runtime.chat.message_queue import MessageQueue
from metier.runtime.cleaning import build_host_redactor, list_host_secrets
from metier.runtime.driver import DriveOptions
from metier.runtime.run_outcome import build_outcome
from metier.runtime.status import SIGNALS, RunStatus, get_status
from metier.views.user_question import DEFAULT_FIELD

type Doubt = Literal["done", "retry", "skip", "abort"]

DOUBTS: tuple[Doubt, ...] = get_args(Doubt.__value__)


class ChatOptions(Struct, frozen=True, kw_only=True):
    """Options of a chat session."""

    quiet: bool = False
    """Show no steps."""
    as_json: bool = False
    """Print one JSON object per turn."""
    first: str = ""
    """A message entered before the chat was opened."""


class AlwaysAsker(Struct, frozen=True):
    """An `Asker` that approves calls which the user already answered with "always" in this conversation."""

    chat: Chat
    prompter: Prompter

    async def __call__(self, question: ApprovalQuestion) -> Reply | None:
        if await is_always(self.chat, question):
            return Reply(decision="approved", by=self.prompter.by, reason="Always in this conversation", remember=True)
        reply = await self.prompter(question)
        if reply is not None and reply.remember:
            await allow_always(self.chat, question)
        return reply


class Session:
    """A conversation at a screen. Errors of a turn or command are printed and do not end the session."""

    def __init__(self, chat: Chat, screen: Screen, options: ChatOptions) -> None:
        self._chat = chat
        self._screen = screen
        self._options = options
        self._exit_code = 0
        self._idle = Stopper(0)
        """Set by a signal received between turns."""
        self._stopper: Stopper | None = None
        """The stopper of the current turn."""
        self._queue = MessageQueue(chat.runtime)
        self._arrived = anyio.Event()
        self._is_working = False
        self._is_planned = False
        """True if the last turn ended with an answer."""
        host = chat.runtime.host
        self._output = build_output_redactor(list_host_secrets(host))
        scope = "in this conversation"
        prompter = Prompter(self._read_word, get_user(), screen.painter, screen.edit, scope, self._read_key)
        always = AlwaysAsker(chat, prompter)
        self._modes = PermissionModes(always)
        self._turns = TurnView(chat, screen.painter, build_host_redactor(host), quiet=options.quiet)
        self._context = ChatContext(
            chat=chat,
            ask=always,
            drive=self._drive,
            turns=self._turns,
            read=self._read_word,
            modes=self._modes,
            is_terminal=screen.is_terminal,
        )
        screen.attach(self)

    async def run(self) -> int:
        """Run the session and return the exit code. Without a terminal, it is the code of the last turn."""
        with self._screen.showing():
            # During a turn, a signal stops the turn; between turns, it ends the session.
            async with passing_signals(lambda: self._stopper or self._idle):
                await self._greet()
                with self._idle.interruptible():
                    await (self._run_at_prompt() if self._screen.types_ahead else self._run_line_by_line())
        if self._idle.signal:
            return SIGNALS.get(self._idle.signal, 1)
        return 0 if self._screen.is_terminal else self._exit_code

    # The methods that `screen.ChatSession` declares.

    def interrupt(self) -> bool:
        if self._stopper is None:
            return False
        self._stopper.request("you")
        if self._queue:
            # After an interruption, queued messages run only if the user sends them again.
            self._screen.restore_draft("\n".join(self._queue.list_texts()))
            self._queue.clear()
        return True

    async def suspend(self) -> None:
        await (self._stopper or self._idle).suspend(stop_process)

    async def expand(self) -> None:
        await self._turns.expand()

    def list_queued(self) -> Sequence[str]:
        return self._queue.list_texts()

    def describe_status(self) -> str:
        return self._turns.describe_status(self._modes.mode)

    def cycle_mode(self) -> None:
        self._modes.cycle(self._chat.resolve().profile)

    async def _run_line_by_line(self) -> None:
        await self._report_errors(self._continue_open_turn())
        if self._options.first:
            await self._report_errors(self._handle(self._options.first))
        while not self._idle.is_set:
            line = await self._read_line()
            if line is None:
                return
            if not line:
                continue
            try:
                await self._report_errors(self._handle(line))
            except ExitChat:
                return

    async def _run_at_prompt(self) -> None:
        """Read messages continuously while a second task works through them."""
        with unwrapped():
            async with anyio.create_task_group() as group:
                group.start_soon(self._work, group.cancel_scope)
                await self._read_messages()
                # Stop the current turn instead of canceling it, so that its journal records the reason.
                if self._stopper is not None:
                    # The messages are in the store. The next chat of this conversation sends them.
                    self._queue.leave_to_next()
                    self._stopper.request("the end of the chat")
                while self._is_working:
                    # `_work` sets it when the turn has ended: by then the queue is empty.
                    self._arrived = anyio.Event()
                    await self._arrived.wait()
                group.cancel_scope.cancel()

    async def _read_line(self) -> str | None:
        """Return None at the end of the input, and "" after Ctrl-C at an empty prompt."""
        try:
            return await self._screen.read_message()
        except EOFError:
            return None
        except KeyboardInterrupt:
            warn_line("To exit, press Ctrl-D or type /quit")
            return ""

    async def _read_messages(self) -> None:
        while True:
            line = await self._read_line()
            if line is None:
                return
            if not line.strip():
                continue
            try:
                if self._is_working and runs_at_once(line):
                    self._turns.echo(line)
                    await self._report_errors(run_command(self._context, line.strip()))
                    continue
            except ExitChat:
                return
            await self._report_errors(self._enqueue(line))
            self._arrived.set()

    async def _enqueue(self, line: str) -> None:
        """Queue a message. During a turn it is stored first, so that it survives the death of this process."""
        steers = self._is_working and await self._chat.can_steer(line)
        await self._queue.add(self._chat.context_id, line, steers=steers, is_stored=self._is_working)

    async def _work(self, scope: anyio.CancelScope) -> None:
        self._is_working = True
        await self._report_errors(self._continue_open_turn())
        if self._options.first:
            self._queue.put_first(self._chat.context_id, self._options.first)
        try:
            while not self._idle.is_set:
                if not self._queue:
                    self._is_working = False
                    self._arrived.set()
                    # anyio's events cannot be cleared, so each wait needs a new one.
                    self._arrived = anyio.Event()
                    await self._arrived.wait()
                    continue
                self._is_working = True
                message = self._queue.pop()
                self._turns.echo(message.text)
                # The ID becomes the run's: after a kill before `flush`, the next chat sees that the message was sent.
                await self._report_errors(self._handle(message.text, run_id=message.message_id))
                await self._queue.flush()
        except ExitChat:
            pass
        self._is_working = False
        scope.cancel()

    async def _greet(self) -> None:
        await self._turns.load_spent()
        if not self._screen.is_terminal or self._options.quiet:
            return
        word = "New conversation" if self._chat.is_new else "Conversation"
        name = "" if self._chat.is_new else f" {self._chat.context_id}"
        warn_line(f"{word}{name}. Type /help for commands.")
        await self._turns.show_past()

    async def _report_errors(self, work: Awaitable[None]) -> None:
        try:
            await work
        except MetierError as error:
            self._exit_code = report(error, debug=False)
        except KeyboardInterrupt:
            warn_line("Stopped")

    async def _continue_open_turn(self) -> None:
        """Continue a turn whose process died, because the user did not stop it. Report other open turns."""
        turn = await self._chat.find_open_turn()
        await self._queue.load(self._chat.context_id, self._chat.get_last_turn)
        if turn is None:
            return
        if turn.wait_kind != "interrupted" and self._queue:
            # The user stopped the turn: the messages run only if the user sends them again.
            self._screen.restore_draft("\n".join(self._queue.list_texts()))
            self._queue.clear()
            await self._queue.flush()
        asked = " ".join(turn.row.task.split())[:80]
        match turn.wait_kind:
            case "interrupted":
                warn_line(f"Continuing the interrupted turn: {asked}")
                await self._drive(lambda watch: self._chat.continue_turn(watch=watch))
            case "approval":
                warn_line(f"The last turn is waiting for your approval: {asked}; type /approve to decide")
            case "input" | "in_doubt":
                await self._answer(turn)
            case _:
                warn_line(f"The last turn was stopped: {asked}; type /continue to resume it")

    async def _handle(self, line: str, *, run_id: str = "") -> None:
        """Carry out a line. `run_id`: the ID for its run if it is a message."""
        if not line.strip():
            return
        if line.startswith("/") and not line.startswith("//"):
            await run_command(self._context, line.strip())
            return
        # Piped lines may come from anywhere, so commands are accepted only at a terminal.
        if self._screen.is_terminal and line.startswith(MARK) and line.removeprefix(MARK).strip():
            command = line.removeprefix(MARK).strip()
            await self._drive(lambda watch: self._chat.run_typed(command, watch), is_typed=True)
            return
        message = line.removeprefix("/") if line.startswith("//") else line
        await self._send(message, run_id=run_id)
        while self._modes.mode == "plan" and self._is_planned and await self._approve_plan():
            await self._send(CARRY_OUT)

    async def _send(self, message: str, *, run_id: str = "") -> None:
        is_typed = self._screen.is_terminal
        text = f"{message}\n\n{PLAN_NOTE}" if self._modes.mode == "plan" else message
        self._is_planned = False
        await self._drive(lambda watch: self._chat.send(text, watch, is_typed=is_typed, run_id=run_id))

    async def _approve_plan(self) -> bool:
        """Ask whether to carry out the plan, and in which mode. If not, the chat stays in plan mode."""
        try:
            key = await self._read_key(
                "Carry out this plan? [y]es  yes, accepting [e]dits  [n]o, keep planning: ", "yen"
            )
        except EOFError:
            return False
        profile = self._chat.resolve().profile
        if key == "e":
            self._modes.choose("accept edits" if "accept edits" in list_modes(profile) else "ask", profile)
        elif key == "y":
            self._modes.choose("ask", profile)
        return key != "n"

    async def _drive(self, turn: Turn, *, is_typed: bool = False) -> None:
        """Run a turn and answer its questions. `is_typed`: the user typed it as a shell command."""
        status = await self._watch(turn, is_typed=is_typed)
        if status is not None:
            await self._answer(status)

    async def _answer(self, status: RunStatus) -> None:
        """Ask the turn's questions until it continues or the user gives no answer."""
        following: RunStatus | None = status
        while following is not None and following.pause and not self._idle.is_set:
            answer = await self._ask(following)
            if answer is None:
                return
            following = await self._watch(partial(self._chat.continue_turn, answer))

    async def _ask(self, status: RunStatus) -> Answer | None:
        if status.pause not in ("input", "in_doubt"):
            return None
        try:
            if status.pause == "in_doubt":
                warn_line(status.pause_reason)
                return Answer(doubt=await self._read_doubt(), by=get_user())
            question = status.question
            warn_line(question.text if question is not None else status.pause_reason)
            names = question.names if question is not None else (DEFAULT_FIELD,)
            values = {name: await self._screen.read_line(f"{name}> ") for name in names}
            return Answer(values={**values}, by=get_user())
        except (EOFError, KeyboardInterrupt):
            warn_line("Not answered; type /continue to be asked again")
            return None

    async def _read_doubt(self) -> Doubt:
        """Read the answer for an interrupted step. Asks again: at the chat's prompt the word would be a new message."""
        while True:
            word = (await self._screen.read_line(f"{'/'.join(DOUBTS)}> ")).strip().lower()
            for doubt in DOUBTS:
                if word == doubt:
                    return doubt
            warn_line("Type done, retry, skip or abort, or press Ctrl-C to answer later")

    async def _read_word(self, prompt: str) -> str:
        """Read a line for a question during a turn. Ctrl-C leaves the question open and does not stop the turn."""
        try:
            return await self._screen.read_line(prompt)
        except KeyboardInterrupt as interrupt:
            raise EOFError from interrupt

    async def _read_key(self, prompt: str, keys: str) -> str:
        try:
            return await self._screen.read_key(prompt, keys)
        except KeyboardInterrupt as interrupt:
            raise EOFError from interrupt

    async def _watch(self, turn: Turn, *, is_typed: bool = False) -> RunStatus | None:
        """Drive and show a turn. Returns None if there was no turn."""
        grace = self._chat.runtime.host.settings.runtime.signal_grace_seconds
        # A user at the prompt expects Esc to act at once; a pipe gets the configured grace period.
        stopper = Stopper(min(grace, STEP_SECONDS) if self._screen.types_ahead else grace, waits_for_model=False)
        with self._turns.begin(as_json=self._options.as_json, is_typed=is_typed) as shown:
            watch = DriveOptions(
                sinks=shown.sinks,
                observe=shown.observe,
                partials=shown.partials,
                # A shell command calls no model that could read a message, so typed messages wait for their own turn.
                inbox=None if is_typed else self._queue,
                stopper=stopper,
                report=warn_line,
                ask=self._modes if self._screen.is_terminal else None,
                # A command that the user types is the user's own action.
                deny_changes=self._modes.deny_changes if not is_typed else lambda: "",
            )
            self._stopper = stopper
            try:
                with unwrapped():
                    state = await turn(watch)
            finally:
                self._stopper = None
            await self._note_interruption(stopper, state)
            if state is None:
                return None
            status = await get_status(self._chat.runtime.store, state)
            self._exit_code = status.exit_code(signal=stopper.signal)
            if self._options.as_json:
                folder = self._chat.runtime.folder(state.run_id)
                outcome = build_outcome(status, folder=folder, exit_code=self._exit_code).document
                write_json_line({"context_id": self._chat.context_id, **outcome}, redactor=self._output)
                sys.stdout.flush()
            else:
                shown.finish(status)
        for line in (*describe_end(status), *describe_cause(status.cause)):
            warn_line(line)
        await self._turns.load_spent()
        self._is_planned = state.status == "completed"
        return status

    async def _note_interruption(self, stopper: Stopper, state: RunState | None) -> None:
        """Stop the session for signals other than Ctrl-C, and save the model's partial answer."""
        if stopper.signal not in ("", "SIGINT"):
            self._idle.receive(stopper.signal)
        if stopper.is_set and state is not None and state.pause is not None:
            await self._chat.keep_partial(state.run_id, self._turns.draft)


def describe_end(status: RunStatus) -> Sequence[str]:
    """Describe a turn that failed or waits."""
    if status.failure is not None:
        again = ["type /continue to retry"] if status.can_continue else []
        return [f"error: {status.failure_text}", *again]
    if status.pause in ("", "input", "in_doubt"):
        return []
    if status.pause == "approval":
        waiting = ", ".join(status.approval_ids)
        return [f"Waiting for approval {waiting}; type /approve to decide, or send a message to end the turn"]
    return [f"{status.pause_reason}; type /continue to resume, or send a message to stop"]
