"""A model behind a real socket that several runs ask at once: it answers each by the role in its system prompt."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from model_server import ModelServer, Reply

BOSS = "boss"
"""Name for requests without a role."""


@dataclass
class RoleModel(ModelServer):
    """The reply to a role is the one for the turn that its request is at; the last one is given again and again."""

    lines: Mapping[str, Sequence[Reply]] = field(default_factory=dict[str, Sequence[Reply]])

    def next(self, body: dict[str, Any]) -> Reply:
        self.received.append(body)
        self.asked.set()
        messages = body["messages"]
        told = "\n".join(str(message["content"]) for message in messages if message["role"] == "system")
        role = next((name for name in self.lines if f"You are the {name}." in told), BOSS)
        turn = sum(message["role"] == "assistant" for message in messages)
        return self.lines[role][min(turn, len(self.lines[role]) - 1)]
