"""The `logging:` section of `agent.yaml`."""

from typing import Literal

from pydantic import Field

from metier.values import Value

type LogLevel = Literal["debug", "info", "warning", "error"]


class LoggingOptions(Value):
    """Logs and redaction."""

    level: LogLevel = Field(
        default="info",
        description="Minimum level of console events. The event log always gets every event.",
    )
    jsonl_dir: str = Field(
        default="./runs",
        description="Folder of the runs. Each run has a folder with its event log, `<run_id>/events.jsonl`.",
    )
    shard: Literal["off", "day"] = Field(
        default="off",
        description=(
            "With `day`, run folders are grouped by start date, `<jsonl_dir>/2026/11/15/<run_id>`, for many thousands"
            " of runs. Folders of both forms are always found."
        ),
    )
    run_id_pattern: Literal["YYYYMMDD-HHMMSS-<short-uuid>"] = Field(
        default="YYYYMMDD-HHMMSS-<short-uuid>",
        description="Format of run ids. Read-only, so that run folders always sort by start.",
    )
    debug_llm_bodies: bool = Field(
        default=False,
        description=(
            "Save complete model requests and replies in the run folder, and complete call arguments in the event log, "
            "with secrets redacted. Otherwise long arguments are truncated, with their size and hash."
        ),
    )
    sanitize_control_chars: bool = Field(
        default=True,
        description="Replace control, escape, bidi and invisible characters of outside text with visible escapes.",
    )
    redact_secrets: bool = Field(
        default=True,
        description=(
            "Redact values with secret names (`password=…`). Known secret values and vendor key formats are always "
            "redacted."
        ),
    )
    redact_names: tuple[str, ...] = Field(
        default=(),
        description="More names of variables, headers or keys with secret values, such as `MY_PASSPHRASE`.",
    )
