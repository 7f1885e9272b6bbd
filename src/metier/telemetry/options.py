"""The `logging:` section of `agent.yaml`: what is written down, where, and how much of it. Values only."""

from typing import Literal

from pydantic import Field

from metier.values import Value

type LogLevel = Literal["debug", "info", "warning", "error"]


class LoggingOptions(Value):
    """What is written down, where, and how much of it."""

    level: LogLevel = Field(
        default="info",
        description="The least important event that the console shows. The event log always gets every event.",
    )
    jsonl_dir: str = Field(
        default="./runs",
        description="The folder that gets one folder per run; the event log is `<run_id>/events.jsonl` in it.",
    )
    shard: Literal["off", "day"] = Field(
        default="off",
        description=(
            "With `day`, a run's folder stands under the day of its start, `<jsonl_dir>/2026/11/15/<run_id>`, for"
            " machines that keep many thousands of runs. Folders of both forms are found, whatever is set."
        ),
    )
    run_id_pattern: Literal["YYYYMMDD-HHMMSS-<short-uuid>"] = Field(
        default="YYYYMMDD-HHMMSS-<short-uuid>",
        description="The form of run ids, for you to read: another one is refused, so that run folders sort by start.",
    )
    debug_llm_bodies: bool = Field(
        default=False,
        description=(
            "Keep whole requests to models and whole replies in the run folder, and whole arguments of calls in the "
            "event log, secrets still redacted. Otherwise a long argument is its beginning, its size and its hash."
        ),
    )
    sanitize_control_chars: bool = Field(
        default=True,
        description="Show control, escape, bidi and invisible characters of outside text as visible escapes.",
    )
    redact_secrets: bool = Field(
        default=True,
        description=(
            "Redact what looks like a secret because of the name in front of it (`password=…`). "
            "Known secret values and vendor key formats are redacted in any case."
        ),
    )
    redact_names: tuple[str, ...] = Field(
        default=(),
        description="Further names (of variables, headers, keys) whose values are secret, such as `MY_PASSPHRASE`.",
    )
