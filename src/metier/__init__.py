"""Metier: a skill-native agent runtime. A run is its journal.

    import metier

    async with metier.open(".") as agent:
        result = await agent.run("Summarise the notes")

The names in `__all__` are the public Python API; every other module is private and may change. They are loaded when
they are first used, so that importing the package costs nothing.
"""

from importlib import import_module

from metier.version import __version__ as __version__

TYPE_CHECKING = False
if TYPE_CHECKING:
    from metier.api.agent import Agent as Agent
    from metier.api.agent import open_agent as open  # noqa: A004
    from metier.api.agent import run_sync as run_sync
    from metier.api.capabilities import create_agent_adapter as create_agent_adapter
    from metier.api.capabilities import create_executor as create_executor
    from metier.api.capabilities import create_state_store as create_state_store
    from metier.api.capabilities import generate_resume_token as generate_resume_token
    from metier.api.results import Approval as Approval
    from metier.api.results import Decision as Decision
    from metier.api.results import Question as Question
    from metier.api.results import RunResult as RunResult
    from metier.api.results import Usage as Usage
    from metier.api.stream import RunStream as RunStream
    from metier.api.stream import TextDelta as TextDelta
    from metier.capabilities.protocol import AgentResponse as AgentResponse
    from metier.capabilities.protocol import ExecutionStatus as ExecutionStatus
    from metier.capabilities.protocol import TaskState as TaskState
    from metier.capabilities.protocol import execution_status_to_task_state as execution_status_to_task_state
    from metier.capabilities.protocol import (
        task_state_to_execution_status_value as task_state_to_execution_status_value,
    )
    from metier.errors import ApprovalClosed as ApprovalClosed
    from metier.errors import ConfigError as ConfigError
    from metier.errors import MetierError as MetierError
    from metier.errors import RunFailed as RunFailed
    from metier.errors import SkillNotFound as SkillNotFound
    from metier.errors import ToolFailed as ToolFailed
    from metier.errors import UsageError as UsageError
    from metier.events.record import EventRecord as Event
    from metier.runtime.skill_router import create_run_router as create_run_router
    from metier.store.failures import DuplicateMessageError as DuplicateMessageError
    from metier.store.failures import ResumeTokenRefused as ResumeTokenRefused
    from metier.store.failures import VersionConflictError as VersionConflictError
    from metier.store.state_store import redact_sensitive as redact_sensitive
    from metier.store.state_store import validate_resume_token as validate_resume_token
    from metier.tools.base import ToolContext as ToolContext
    from metier.tools.function_tool import tool as tool

_HOMES = {
    "Agent": "api.agent",
    "AgentResponse": "capabilities.protocol",
    "Approval": "api.results",
    "ApprovalClosed": "errors",
    "ConfigError": "errors",
    "Decision": "api.results",
    "DuplicateMessageError": "store.failures",
    "Event": "events.record:EventRecord",
    "ExecutionStatus": "capabilities.protocol",
    "MetierError": "errors",
    "Question": "api.results",
    "ResumeTokenRefused": "store.failures",
    "RunFailed": "errors",
    "RunResult": "api.results",
    "RunStream": "api.stream",
    "SkillNotFound": "errors",
    "TaskState": "capabilities.protocol",
    "TextDelta": "api.stream",
    "ToolContext": "tools.base",
    "ToolFailed": "errors",
    "Usage": "api.results",
    "UsageError": "errors",
    "VersionConflictError": "store.failures",
    "create_agent_adapter": "api.capabilities",
    "create_executor": "api.capabilities",
    "create_run_router": "runtime.skill_router",
    "create_state_store": "api.capabilities",
    "execution_status_to_task_state": "capabilities.protocol",
    "generate_resume_token": "api.capabilities",
    "open": "api.agent:open_agent",
    "redact_sensitive": "store.state_store",
    "run_sync": "api.agent",
    "task_state_to_execution_status_value": "capabilities.protocol",
    "tool": "tools.function_tool",
    "validate_resume_token": "store.state_store",
}
"""Module of each public name, with its name there if it is different."""

__all__ = [
    "Agent",
    "AgentResponse",
    "Approval",
    "ApprovalClosed",
    "ConfigError",
    "Decision",
    "DuplicateMessageError",
    "Event",
    "ExecutionStatus",
    "MetierError",
    "Question",
    "ResumeTokenRefused",
    "RunFailed",
    "RunResult",
    "RunStream",
    "SkillNotFound",
    "TaskState",
    "TextDelta",
    "ToolContext",
    "ToolFailed",
    "Usage",
    "UsageError",
    "VersionConflictError",
    "create_agent_adapter",
    "create_executor",
    "create_run_router",
    "create_state_store",
    "execution_status_to_task_state",
    "generate_resume_token",
    "open",
    "redact_sensitive",
    "run_sync",
    "task_state_to_execution_status_value",
    "tool",
    "validate_resume_token",
]

if not TYPE_CHECKING:

    def __getattr__(name: str) -> object:
        if name not in _HOMES:
            raise AttributeError(f"module 'metier' has no attribute {name!r}")
        module, _, inner = _HOMES[name].partition(":")
        value = getattr(import_module(f"metier.{module}"), inner or name)
        globals()[name] = value
        return value

    def __dir__() -> list[str]:
        return sorted([*globals(), *_HOMES])
