"""The registry of a plugin: everything that it may add. Nothing is loaded or started here.

A plugin is one function, named by an entry point of the group `metier.plugins`:

    def register(registry: Registry) -> None:
        registry.tools.append(Lookup())

A plugin that observes subscribes to events; a plugin that changes behavior adds a tool or a provider.
There are no hooks around the engine.
"""

from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from typing import NamedTuple

import typer

from metier.events.record import EventRecord
from metier.providers.base import Provider
from metier.providers.connection import Connection
from metier.store.base import Store
from metier.tools.base import Tool

API = 1
"""Version of the plugin interface; it grows with incompatible changes."""

GROUP = "metier.plugins"

type OpenProvider = Callable[[Connection], Provider]
"""Gets a `Connection` with the model facts only; keys and addresses are up to the plugin."""

type Subscriber = Callable[[EventRecord], None]
"""Gets every event of every run of this process, after redaction, in order, on a thread of its own."""


type OpenStore = Callable[[str], Awaitable[Store]]
"""Gets the address of the settings, which may be empty."""


class Command(NamedTuple):
    app: typer.Typer
    summary: str
    """One sentence for `agent plugins list`."""


class PromptLayer(NamedTuple):
    """A text in the system prompt, after the agent's own."""

    title: str
    render: Callable[[], str]
    """Called once, when a run starts; the run stores the result."""


# A dataclass, not a Struct: it is part of the plugin interface.
@dataclass(slots=True)
class Registry:
    """One plugin's additions. Every plugin gets its own registry, so that a failing one leaves nothing behind."""

    plugin: str
    api: int = API
    tools: list[Tool] = field(default_factory=list[Tool])
    providers: dict[str, OpenProvider] = field(default_factory=dict[str, OpenProvider])
    """By name; the settings say `provider: plugin/<name>`."""
    stores: dict[str, OpenStore] = field(default_factory=dict[str, OpenStore])
    """By name; the settings say `backend: plugin/<name>`. It must pass `metier.testing.store_contract`."""
    commands: dict[str, Command] = field(default_factory=dict[str, Command])
    prompt_layers: list[PromptLayer] = field(default_factory=list[PromptLayer])
    subscribers: list[Subscriber] = field(default_factory=list[Subscriber])
    start: Callable[[], None] | None = None
    """Called before the first run of a process that uses the plugin."""
    stop: Callable[[], None] | None = None
    """Called at the end of that process, even if `start` failed."""
