"""One sitting: read a message, drive its turn, say how it ended, until the person leaves."""

import sys
from collections.abc import Awaitable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Literal, get_args

from metier.cli.chat.screen import Screen
from metier.cli.chat.slash_commands import Desk, Leave, Turn, run_command
from metier.cli.chat.view import ChatView
from metier.cli.run.approval_dialog import Prompter
from metier.cli.run.driving import Driven, build_outcome, describe_cause, find_standing
from metier.cli.shared.exit_codes import SIGNALS
from metier.cli.shared.failure import report
from metier.cli.shared.output import build_output_redactor, warn_line, write_json_line
from metier.cli.shared.signals import obeying_signals
from metier.engine.state import RunState
from metier.engine.stopping import Stopper
from metier.engine.unwrapping import unwrapped
from metier.errors import MetierError
from metier.ids import find_user
from metier.runtime.answers import Answer
from metier.runtime.chat.chats import Chat
from metier.runtime.cleaning import build_place_redactor, find_place_secrets
from metier.runtime.reopening import can_reopen
from metier.runtime.runs import Watch

type Doubt = Literal["done", "retry", "skip", "abort"]

DOUBTS: tuple[Doubt, ...] = get_args(Doubt.__value__)


@dataclass(frozen=True, slots=True, kw_only=True)
class Manner:
    """How a conversation is held."""

    quiet: bool = False
    """No steps are shown."""
    as_json: bool = False
    """One object per turn, for a program."""
    first: str = ""
    """A message that was typed before the conversation was opened."""


class Session:
    """A conversation at a screen. Errors of a turn or a command are said, and the conversation goes on."""

    def __init__(self, chat: Chat, screen: Screen, manner: Manner) -> None:
        self._chat = chat
        self._screen = screen
        self._quiet = manner.quiet
        self._as_json = manner.as_json
        self._first = manner.first
        self._exit_code = 0
        self._signal = ""
        place = chat.runtime.place
        self._redactor = build_place_redactor(place)
        self._output = build_output_redactor(find_place_secrets(place))
        self._prompter = Prompter(self._read_word, find_user())
        self._desk = Desk(chat=chat, ask=self._prompter, drive=self._drive)

    async def run(self) -> int:
        """The exit code: of the last turn where a program listens, else whether the person could leave in peace."""
        self._greet()
        await self._guarded(self._look_back())
        if self._first:
            await self._guarded(self._take(self._first))
        while not self._signal:
            try:
                line = await self._screen.read_message()
            except EOFError:
                break
            except KeyboardInterrupt:
                warn_line("Ctrl-D or /quit leaves")
                continue
            try:
                await self._guarded(self._take(line))
            except Leave:
                break
        if self._signal:
            return SIGNALS.get(self._signal, 1)
        return 0 if self._screen.is_terminal else self._exit_code

    def _greet(self) -> None:
        if not self._screen.is_terminal or self._quiet:
            return
        agent = self._chat.resolve()
        who = agent.definition.name if agent.definition else "the built-in agent"
        word = "New conversation" if self._chat.is_new else "Conversation"
        warn_line(
            f"{word} {self._chat.context_id} with {who}, answered by {self._chat.answered_by}. /help lists commands."
        )

    async def _guarded(self, work: Awaitable[None]) -> None:
        try:
            await work
        except MetierError as error:
            self._exit_code = report(error, debug=False)
        except KeyboardInterrupt:
            warn_line("Stopped")

    async def _look_back(self) -> None:
        """A turn that was killed goes on by itself: the user wanted it, and did not stop it."""
        turn = await self._chat.find_open_turn()
        if turn is None:
            return
        asked = " ".join(turn.task.split())[:80]
        match turn.kind:
            case "interrupted":
                warn_line(f"The last turn was cut short and goes on now: {asked}")
                await self._drive(lambda watch: self._chat.go_on(watch=watch))
            case "stopped":
                warn_line(f"The last turn was stopped: {asked}; /continue goes on with it")
            case "approval":
                warn_line(f"The last turn waits for your approval: {asked}; /approve decides")
            case "input" | "in_doubt":
                await self._answer(turn.waiting)

    async def _take(self, line: str) -> None:
        if not line.strip():
            return
        if line.startswith("/") and not line.startswith("//"):
            await run_command(self._desk, line.strip())
            return
        message = line.removeprefix("/") if line.startswith("//") else line
        await self._drive(lambda watch: self._chat.send(message, watch))

    async def _drive(self, turn: Turn) -> None:
        """One turn, with everything it asks on its way."""
        state = await self._watch(turn)
        if state is not None:
            await self._answer(state)

    async def _answer(self, state: RunState) -> None:
        """Ask what the turn waits for, until it waits no longer or the user gives no answer."""
        following: RunState | None = state
        while following is not None and following.pause is not None and not self._signal:
            answer = await self._ask(following)
            if answer is None:
                return
            following = await self._watch(partial(self._chat.go_on, answer))

    async def _ask(self, state: RunState) -> Answer | None:
        assert state.pause is not None
        if state.pause.pause not in ("input", "in_doubt"):
            return None
        try:
            if state.pause.pause == "in_doubt":
                warn_line(state.pause.reason)
                word = (await self._screen.read_line(f"{'/'.join(DOUBTS)}> ")).strip()
                doubt: Doubt | None = next((known for known in DOUBTS if word == known), None)
                return Answer(doubt=doubt, by=find_user()) if doubt else None
            question = state.question
            warn_line(question.question if question else state.pause.reason)
            values = {name: await self._screen.read_line(f"{name}> ") for name in list_fields(state)}
            return Answer(values={**values}, by=find_user())
        except (EOFError, KeyboardInterrupt):
            warn_line("Not answered; /continue asks again")
            return None

    async def _read_word(self, prompt: str) -> str:
        """For a question in the middle of a turn: Ctrl-C leaves it open instead of breaking the turn."""
        try:
            return await self._screen.read_line(prompt)
        except KeyboardInterrupt as interrupt:
            raise EOFError from interrupt

    async def _watch(self, turn: Turn) -> RunState | None:
        """Drive and show; what comes back is the run that is waited for, if one is."""
        streams = sys.stdout.isatty() and not self._as_json
        view = ChatView(self._redactor, streams=streams, quiet=self._quiet)
        stopper = Stopper(self._chat.runtime.place.settings.runtime.signal_grace_seconds, waits_for_model=False)
        watch = Watch(
            sinks=[view],
            observe=view.observe if streams else None,
            stopper=stopper,
            report=warn_line,
            ask=self._prompter if self._screen.is_terminal else None,
        )
        try:
            with unwrapped():
                async with obeying_signals(stopper):
                    state = await turn(watch)
        finally:
            view.close()
        self._signal = stopper.signal if stopper.signal not in ("", "SIGINT") else self._signal
        if state is None:
            return None
        driven = await find_standing(self._chat.runtime, state)
        self._exit_code = driven.find_exit_code(signal=stopper.signal)
        self._tell(driven, view)
        return driven.waiting

    def _tell(self, driven: Driven, view: ChatView) -> None:
        state = driven.state
        if self._as_json:
            outcome = build_outcome(driven, exit_code=self._exit_code)
            write_json_line({"context_id": self._chat.context_id, **outcome}, redactor=self._output)
            sys.stdout.flush()
        else:
            view.finish(state.result)
        for line in (*describe_end(state if state.failure else driven.waiting), *describe_cause(driven.cause)):
            warn_line(line)


def describe_end(state: RunState) -> Sequence[str]:
    """What a person should know of a turn that did not simply end."""
    if state.failure is not None:
        again = ["/continue goes on with it"] if can_reopen(state) else []
        return [f"error: {state.failure.message} ({state.failure.reason})", *again]
    if state.pause is None or state.pause.pause in ("input", "in_doubt"):
        return []
    if state.pause.pause == "approval":
        waiting = [step.approval_id for step in state.steps if step.phase == "asking"]
        return [f"The turn waits for approval {', '.join(waiting)}; /approve decides, a new message ends it"]
    return [f"{state.pause.reason}; /continue goes on with it, a new message ends it"]


def list_fields(state: RunState) -> tuple[str, ...]:
    """The names of what is asked for; one of no name is the answer."""
    fields = state.question.fields if state.question else None
    if isinstance(fields, dict):
        properties = fields.get("properties")
        return tuple(properties if isinstance(properties, dict) else fields) or ("answer",)
    if isinstance(fields, list) and fields:
        return tuple(str(each.get("name", "answer")) if isinstance(each, dict) else str(each) for each in fields)
    return ("answer",)
