"""The `worker:` section of `agent.yaml`: how workers drive runs that were left to them. Never holds a password."""

from typing import Annotated

from pydantic import Field

from metier.messages import Value

type QueueName = Annotated[str, Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9_-]{0,62}$")]


class WorkerOptions(Value):
    """How workers drive runs that were left to them."""

    queue: QueueName = Field(
        default="agent",
        description="The queue that detached runs go to and that workers take runs from; one for each workspace.",
    )
    broker_url_env: Annotated[str, Field(pattern=r"^[A-Za-z_][A-Za-z0-9_]*$")] = Field(
        default="CELERY_BROKER_URL",
        description="The environment variable that holds the address of the Celery broker, password included;"
        " AGENT_WORKER_BROKER_URL goes before it. Without either, workers look into the run store.",
    )
    concurrency: int = Field(default=4, ge=1, le=1000, description="How many runs one worker drives at a time.")
    lease_seconds: float = Field(
        default=15,
        ge=1,
        allow_inf_nan=False,
        description="How long a worker that is not heard of keeps a run before another takes it over, in seconds.",
    )
    turns_per_task: int = Field(
        default=20, ge=1, description="How many turns a worker takes before it hands a run back to the queue."
    )
    timeout_seconds: float = Field(
        default=3600,
        gt=0,
        allow_inf_nan=False,
        description="How long a worker may drive a run at a stretch before the run ends as `timeout`, in seconds.",
    )
    max_attempts: int = Field(
        default=5,
        ge=1,
        description="How many workers in a row may take a run without getting any further before it fails.",
    )
    autostart: bool = Field(
        default=True,
        description="Whether leaving a run to workers starts one in the background, where the run store is a file of"
        " this machine, there is no broker, and none that started itself is there.",
    )
    idle_seconds: float = Field(
        default=30,
        ge=0,
        allow_inf_nan=False,
        description="How long a worker that started itself waits for more to do before it leaves, in seconds.",
    )
    sweep_seconds: float = Field(
        default=5,
        gt=0,
        allow_inf_nan=False,
        description="How often a worker looks for runs that no process drives and that no message names, in seconds.",
    )
