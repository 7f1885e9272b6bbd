"""Cost of showing a run at a terminal, as a share of the run's CPU time; and without a terminal.

The run does what runs do: each turn calls a real command and says a sentence that is streamed word by word.
"""

import io
import os
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import override

import anyio

from bench.table import Row
from metier.events.record import EventRecord
from metier.messages import ModelReply, TextPart, ToolCallPart, Usage
from metier.providers.base import Delta, ModelRequest, Observer
from metier.runtime.driver import DriveOptions
from metier.runtime.host import Host
from metier.runtime.requests import RunRequest
from metier.runtime.runs import open_runtime
from metier.settings.sections import Settings
from metier.skills.workspace_trust import MADE_HERE
from metier.telemetry.redaction import build_redactor
from metier.views.live import LiveRun
from metier.views.painter import build_painter

TURNS = 40
MAX_SHARE = 0.05
_SENTENCE = "I look at the next part of it, which is **longer** than the last one.\n\n"


class _Screen(io.StringIO):
    """A terminal without a window."""

    def __init__(self, *, is_terminal: bool) -> None:
        super().__init__()
        self._is_terminal = is_terminal

    @override
    def isatty(self) -> bool:
        return self._is_terminal


class _Talker:
    """Says a sentence word by word and calls a command, turn by turn."""

    name = "bench"

    def __init__(self) -> None:
        self._turn = 0

    async def reply(self, request: ModelRequest, *, observe: Observer | None = None) -> ModelReply:  # noqa: ARG002
        self._turn += 1
        if observe is not None:
            for word in _SENTENCE.split(" "):
                observe(Delta("text", f"{word} "))
        usage = Usage(input_tokens=1000, output_tokens=30)
        call = ToolCallPart(id=f"c{self._turn}", name="Bash", arguments={"command": f"seq {self._turn} 40"})
        is_last = self._turn > TURNS
        said = TextPart(text=_SENTENCE)
        parts = (said,) if is_last else (said, call)
        reason = "end" if is_last else "tool_calls"
        return ModelReply(parts=parts, stop_reason=reason, provider="bench", model="bench", usage=usage)

    async def count_tokens(self, request: ModelRequest) -> int | None:  # noqa: ARG002
        return None

    async def close(self) -> None:
        return None


class _Recorder:
    """Keeps what a view would be told, in order."""

    def __init__(self) -> None:
        self.told: list[EventRecord | Delta] = []

    def write(self, record: EventRecord) -> None:
        self.told.append(record)

    def observe(self, delta: Delta) -> None:
        self.told.append(delta)

    def close(self) -> None:
        return None


def rows() -> list[Row]:
    os.environ["TERM"] = "xterm-256color"
    with tempfile.TemporaryDirectory(dir=Path.cwd()) as folder:
        before = _read_times()
        told = anyio.run(_run, Path(folder))
        spent = _read_times() - before
    # The packages that lay out Markdown are loaded once, at the first block; that is a matter of starting.
    _show(told[:60], _Screen(is_terminal=True))
    shares = [(where, _show(told, _Screen(is_terminal=is_terminal)) / spent) for where, is_terminal in _PLACES]
    return [
        Row(
            f"rendering: share of a run's processor time, {where}",
            f"{100 * share:.1f} %",
            f"<= {100 * MAX_SHARE:.0f} %",
            share <= MAX_SHARE,
        )
        for where, share in shares
    ]


_PLACES = (("at a terminal", True), ("not at a terminal", False))


def _read_times() -> float:
    """With those of the programs that the run starts."""
    return sum(os.times()[:4])


def _show(told: Sequence[EventRecord | Delta], screen: _Screen) -> float:
    """All of it at once: reading the clock around each event would cost more than showing it."""
    live = LiveRun(build_painter(screen), build_redactor(), shows_text=screen.isatty())
    began = time.process_time()
    for each in told:
        if isinstance(each, Delta):
            live.observe(each)
        else:
            live.write(each)
    return time.process_time() - began


async def _run(folder: Path) -> Sequence[EventRecord | Delta]:
    settings = Settings.model_validate({"model": {"provider": "openai", "name": "m"}, "runtime": {"max_turns": 100}})
    host = Host(
        trust=MADE_HERE, settings=settings, workspace=folder, home=folder / "home", environ=os.environ,
        provider=_Talker(),
    )  # fmt: skip
    recorder = _Recorder()
    async with open_runtime(host) as runtime:
        state = await runtime.start(RunRequest(task="Count"), DriveOptions(sinks=[recorder], observe=recorder.observe))
    assert state.status == "completed", state.failure
    return recorder.told
