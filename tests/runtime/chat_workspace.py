"""A workspace for chats, and a model that counts its input."""

from collections.abc import AsyncGenerator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path

from metier.context.tokens import TokenCounter, estimate_tokens
from metier.messages import ModelReply, TextPart, Usage
from metier.providers.base import Delta, ModelRequest, Observer
from metier.runtime.chat.chats import Chat, ChatRequest, open_chat
from metier.runtime.host import Host
from metier.runtime.runs import open_runtime
from metier.settings.sections import Settings
from metier.skills.workspace_trust import MADE_HERE

PRICES = "openai:\n  m: {prices: {input: 1.0, output: 2.0, as_of: 2026-11-01}}\n"
SMALL = {
    "provider": "openai", "name": "m", "max_context_tokens": 6_000, "response_headroom_tokens": 500,
    "facts_file": "prices.yaml",
}  # fmt: skip
LIMIT = 5_500


@dataclass
class CountingModel:
    """A model that answers by a rule and reports the request's size as usage."""

    answer: Callable[[ModelRequest], str]
    name: str = "openai"
    requests: list[ModelRequest] = field(default_factory=list[ModelRequest])
    tokens: list[int] = field(default_factory=list[int])

    async def reply(self, request: ModelRequest, *, observe: Observer | None = None) -> ModelReply:
        self.requests.append(request)
        self.tokens.append(count(request))
        text = self.answer(request)
        if observe is not None:
            observe(Delta("text", text))
        return ModelReply(
            parts=(TextPart(text=text),),
            stop_reason="end",
            usage=Usage(input_tokens=self.tokens[-1], output_tokens=estimate_tokens(text)),
            provider=self.name,
            model=request.model,
        )

    async def count_tokens(self, request: ModelRequest) -> int | None:
        return count(request)

    async def close(self) -> None:
        return None


def count(request: ModelRequest) -> int:
    counter = TokenCounter()
    system = sum(estimate_tokens(block.text) for block in request.system)
    return system + sum(map(counter.message, request.messages)) + counter.tools(request.tools)


def text_of(request: ModelRequest) -> str:
    """Return all text in a request's messages."""
    return "\n".join(p.text for message in request.messages for p in message.parts if isinstance(p, TextPart))


def is_summary(request: ModelRequest) -> bool:
    return "new summary" in text_of(request)


def last_words(request: ModelRequest) -> str:
    part = request.messages[-1].parts[0]
    return part.text if isinstance(part, TextPart) else ""


def build_host(folder: Path, provider: CountingModel | None, **sections: object) -> Host:
    (folder / "prices.yaml").write_text(PRICES, encoding="utf-8")
    settings = Settings.model_validate({"model": SMALL, **sections})
    return Host(
        trust=MADE_HERE, settings=settings, workspace=folder, home=folder / "home", environ={}, provider=provider
    )


@asynccontextmanager
async def chatting(host: Host, request: ChatRequest | None = None) -> AsyncGenerator[Chat]:
    async with open_runtime(host) as runtime:
        yield await open_chat(runtime, request or ChatRequest())
