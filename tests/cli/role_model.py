"""A model behind a real socket, shared by several runs: it answers by the role in the system prompt."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from model_server import ModelServer, Reply

BOSS = "boss"
"""Name for requests without a role."""


@dataclass
class RoleModel(ModelServer):
    """A server that answers by role and turn and repeats the last reply."""

    lines: Mapping[str, Sequence[Reply]] = field(default_factory=dict[str, Sequence[Reply]])

    def next(self, body: dict[str, Any]) -> Reply:
        self.received.append(body)
        self.asked.set()
        messages = body["messages"]
        told = "\n".join(str(message["content"]) for message in messages if message["role"] == "system")
        role = next((name for name in self.lines if f"You are the {name}." in told), BOSS)
        turn = sum(message["role"] == "assistant" for message in messages)
        return self.lines[role][min(turn, len(self.lines[role]) - 1)]
