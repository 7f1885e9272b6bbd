"""How a run can stand. A word, without the events that tell of it: lists of runs need no more."""

from typing import Literal, get_args

type TaskState = Literal[
    "pending", "in_progress", "completed", "failed", "timeout", "blocked", "escalated", "input_required", "delegating",
    "paused", "canceled"
]  # fmt: skip
TASK_STATES: tuple[str, ...] = get_args(TaskState.__value__)
