"""The four wire formats under test: how each is opened, streamed, and where its fixtures are."""

import json
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import cast

from wire_server import Answer, Ending, stream, whole

from metier.messages import ToolSpec, user
from metier.providers.base import ModelRequest, Provider
from metier.providers.connection import ApiStyle
from metier.providers.facts import load_facts
from metier.providers.registry import ProviderChoice, open_provider

FIXTURES = Path(__file__).parent.parent / "fixtures" / "provider_responses"
KEY = "-".join(["sk", "fake", "0123456789abcdef"])


@dataclass(frozen=True, slots=True)
class Vendor:
    folder: str
    provider: str
    api: ApiStyle = "auto"

    def load(self, name: str) -> object:
        return cast("object", json.loads((FIXTURES / self.folder / f"{name}.json").read_text(encoding="utf-8")))

    def answer(self, name: str) -> Answer:
        return whole(self.load(name))

    def streamed(self, name: str, *, ending: Ending = "whole", cut_after: int | None = None) -> Answer:
        events = cast("list[object]", self.load(f"{name}.stream"))[:cut_after]
        chat = self.folder == "openai_chat"
        return stream(
            events, named=self.provider == "anthropic", done=chat and ending == "whole" and not cut_after, ending=ending
        )

    @asynccontextmanager
    async def opened(self, url: str) -> AsyncGenerator[Provider]:
        choice = ProviderChoice(name=self.provider, base_url=url, api=self.api)
        keys = ("ANTHROPIC_API_KEY", "GEMINI_API_KEY", "OPENAI_API_KEY")
        provider = open_provider(choice, load_facts(), environment=dict.fromkeys(keys, KEY))
        try:
            yield provider
        finally:
            await provider.close()


VENDORS = [
    Vendor("anthropic", "anthropic"),
    Vendor("gemini", "gemini"),
    Vendor("openai_chat", "openai", "chat"),
    Vendor("openai_responses", "openai", "responses"),
]
NAMES = [vendor.folder for vendor in VENDORS]

SEARCH = ToolSpec(
    name="notes.search",
    description="Search the notes",
    input_schema={
        "type": "object",
        "properties": {"query": {"type": "string"}, "limit": {"type": "integer"}},
        "required": ["query"],
    },
)
READ = ToolSpec(
    name="Read",
    description="Read a file",
    input_schema={"type": "object", "properties": {"path": {"type": "string"}}, "required": ["path"]},
)


def ask(text: str = "Tidy the notes", **changes: object) -> ModelRequest:
    fields: dict[str, object] = {
        "model": "model-1",
        "messages": (user(text),),
        "tools": (SEARCH, READ),
        "max_tokens": 500,
        "timeout_seconds": 20.0,
        **changes,
    }
    return ModelRequest(**fields)  # pyright: ignore[reportArgumentType]
