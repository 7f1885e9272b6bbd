"""The `notify:` section of `agent.yaml`: who is told when a person is needed. Never holds a secret."""

from typing import Annotated, Literal

from pydantic import Field

from metier.messages import Value

type NotifyWord = Literal["approval", "input", "ended", "budget"]


class NotifyOptions(Value):
    """Who is told when a person is needed or a run has ended."""

    events: tuple[Annotated[str, Field(pattern=r"^(approval|input|ended|budget)$")], ...] = Field(
        default=("approval", "input", "ended", "budget"),
        description=(
            "What is told: approval and input when a person is wanted, ended when a run has ended, budget when four "
            "fifths of max_cost_usd are spent."
        ),
    )
    webhook_url: Annotated[str, Field(pattern=r"^https?://")] | None = Field(
        default=None, description="The address that messages are posted to as JSON, signed; none if unset."
    )
    webhook_secret_env: Annotated[str, Field(pattern=r"^[A-Za-z_][A-Za-z0-9_]*$")] = Field(
        default="AGENT_NOTIFY_SECRET",
        description="The environment variable that holds the secret by which messages are signed.",
    )
    command: tuple[Annotated[str, Field(min_length=1)], ...] = Field(
        default=(), description="A program with its arguments that reads each message as JSON on stdin; none if empty."
    )
    bell: bool = Field(
        default=False, description="Ring the bell of the terminal when a person is wanted or a run ended."
    )

    decider: str = Field(
        default="",
        max_length=64,
        description=(
            "The name under which a link in a message decides about an approval; that of the server's user if empty."
        ),
    )

    @property
    def channels(self) -> tuple[Literal["webhook", "command"], ...]:
        """Those through which messages leave this program."""
        return (*(("webhook",) if self.webhook_url else ()), *(("command",) if self.command else ()))
