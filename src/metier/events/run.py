"""Events of a whole run: its start, pauses, changes and end."""

from typing import Literal

from msgspec import field

from metier.decisions import TaskState
from metier.events.payload import Payload


class RunStarted(Payload, frozen=True, kw_only=True):
    """A run started, with its request, agent, model and pins."""

    event_type = "run_started"
    task: str
    mode: Literal["live", "dry_run", "replay"] = "live"
    agent: str = ""
    provider: str = ""
    model: str = ""
    profile: str = ""
    sandbox: str = ""
    reading_sandbox: str = ""
    """Sandbox level of commands that run without a question; empty in logs of older versions."""
    context_id: str = ""
    parent_run_id: str = ""
    pins: dict[str, str] = field(default_factory=dict)
    """Definition ID → content hash."""


class RunPaused(Payload, frozen=True, kw_only=True):
    """The run paused: the reason, and how to continue."""

    event_type = "run_paused"
    # The words of `RunPaused` in the journal: one may be added, none removed.
    kind: Literal[
        "approval", "input", "delegation", "signal", "in_doubt", "storage", "explicit", "step_failed", "changed_code",
        "limit",
    ]  # fmt: skip
    reason: str
    resume_with: str = ""


class RunResumed(Payload, frozen=True, kw_only=True):
    """The run continues: after a pause, a restart, or a takeover."""

    event_type = "run_resumed"
    reason: str
    driver: str = ""
    at_seq: int = 0


class LimitsRaised(Payload, frozen=True, kw_only=True):
    """A user raised limits of the run; unnamed limits are unchanged."""

    event_type = "limits_raised"
    max_turns: int | None = None
    max_cost_usd: float | None = None
    timeout_seconds: float | None = None
    raised_by: str = ""


class RunReopened(Payload, frozen=True, kw_only=True):
    """A run that a limit or a provider had ended continues."""

    event_type = "run_reopened"
    reason: str
    reopened_by: str = ""
    step_id: str = ""


class PinnedDefinitionUsed(Payload, frozen=True, kw_only=True):
    """A definition changed since the run started; the run continues with the pinned bytes."""

    event_type = "pinned_definition_used"
    definition: str
    pinned: str


McpServerState = Literal["not_accepted", "unusable", "started", "ended", "changed"]


class McpServerReported(Payload, frozen=True, kw_only=True):
    """An MCP server was left out, started, ended, or no longer offers the accepted tools."""

    event_type = "mcp_server_reported"
    server: str
    """The name; file and line for the state `unusable`, because a broken file names no server."""
    state: McpServerState
    message: str
    tools: tuple[str, ...] = ()


class SignalReceived(Payload, frozen=True, kw_only=True):
    """The process received a signal to stop."""

    event_type = "signal_received"
    signal: str
    count: int = 1


class GracefulShutdownStarted(Payload, frozen=True, kw_only=True):
    """No new work; children get this long before they are killed."""

    event_type = "graceful_shutdown_started"
    grace_seconds: float
    children: int = 0


class RunFinished(Payload, frozen=True, kw_only=True):
    """The run completed."""

    event_type = "run_finished"
    status: TaskState = "completed"
    mode: Literal["live", "dry_run", "replay"] = "live"
    result_summary: str = ""
    turns: int = 0
    input_tokens: int = 0
    output_tokens: int = 0
    cost_usd: float | None = 0.0
    """None if a model without a known price answered."""
    duration_ms: float = 0.0


class RunFailed(Payload, frozen=True, kw_only=True):
    """The run ended without a result: a reason for machines, a message for people."""

    event_type = "run_failed"
    reason: str
    message: str
    status: TaskState = "failed"
    turns: int = 0
    duration_ms: float = 0.0


class LogRepaired(Payload, frozen=True, kw_only=True):
    """The log was opened after a crash: the incomplete last record was removed."""

    event_type = "log_repaired"
    dropped_bytes: int
    last_good_seq: int


class ResultChecked(Payload, frozen=True, kw_only=True):
    """A result was checked against the request; the model may correct problems once."""

    event_type = "result_checked"
    accepted: bool
    failures: tuple[str, ...] = ()


class RunAdopted(Payload, frozen=True, kw_only=True):
    """A run from another store continues here: with this host's settings, rules, provider and keys.

    Steps that were planned and not finished are asked about.
    """

    event_type = "run_adopted"
    provider: str
    model: str
    profile: str


class ModelChanged(Payload, frozen=True, kw_only=True):
    """A run that its provider ended continues with another provider, model, address or window."""

    event_type = "model_changed"
    provider: str
    model: str
    settings: tuple[str, ...] = ()
    """Names of the changed settings."""
    changed_by: str = ""
