"""Cost of a late chat turn against an early one: request size and CPU time."""

import tempfile
import time
from pathlib import Path

import anyio

from bench.table import Row
from metier.context.tokens import TokenCounter
from metier.runtime.chat.chats import ChatRequest, open_chat
from metier.runtime.host import Host
from metier.runtime.runs import open_runtime
from metier.settings.sections import Settings
from metier.skills.workspace_trust import MADE_HERE
from metier.testing.scripted import ScriptedProvider, says

TURNS = 120
EARLY, LATE = slice(20, 60), slice(80, 120)


def rows() -> list[Row]:
    with tempfile.TemporaryDirectory(dir=Path.cwd()) as folder:
        tokens, seconds = anyio.run(_measure, Path(folder))
    size = max(tokens[LATE]) / max(tokens[EARLY])
    share = sum(seconds[LATE]) / sum(seconds[EARLY])
    each = sum(seconds[LATE]) / len(seconds[LATE]) * 1000
    return [
        Row(
            "chat: largest request of turns 81-120, against 21-60",
            f"{size:.2f} ({max(tokens[LATE])} tokens)",
            "<= 1.05",
            size <= 1.05,
        ),
        Row(
            "chat: processor time of turns 81-120, against 21-60",
            f"{share:.2f} ({each:.0f} ms a turn)",
            "<= 1.25",
            share <= 1.25,
        ),
    ]


async def _measure(folder: Path) -> tuple[list[int], list[float]]:
    words = "That is noted, and there is nothing else to say about it. " * 3
    model = ScriptedProvider(*(says(words) for _ in range(2 * TURNS)), name="openai")
    settings = Settings.model_validate(
        {"model": {"provider": "openai", "name": "m", "max_context_tokens": 8_000, "response_headroom_tokens": 500}}
    )
    host = Host(trust=MADE_HERE, settings=settings, workspace=folder, home=folder / "home", environ={}, provider=model)
    tokens: list[int] = []
    seconds: list[float] = []
    async with open_runtime(host) as runtime:
        chat = await open_chat(runtime, ChatRequest())
        for number in range(TURNS):
            started = time.process_time()
            await chat.send(f"Item {number} of the list, with some words to fill the line up. " * 2)
            seconds.append(time.process_time() - started)
            counter = TokenCounter()
            tokens.append(sum(map(counter.message, model.requests[-1].messages)))
    return tokens, seconds
