"""The `server:` section of `agent.yaml`: where the HTTP server listens, who may use it, within which limits."""

from typing import Annotated

from pydantic import Field

from metier.messages import Value

type UserEntry = Annotated[str, Field(pattern=r"^[^\s:]{1,64}:(peer|viewer|approver|operator):[0-9a-f]{64}$")]
"""`name:role:digest`, the digest being the SHA-256 of the user's token in hexadecimal."""


class ServerOptions(Value):
    """Where the HTTP server listens, who may use it, within which limits."""

    host: str = Field(
        default="127.0.0.1",
        min_length=1,
        description="The address that `agent serve` listens at; one that is not loopback needs allowed_hosts.",
    )
    port: int = Field(default=8321, ge=0, le=65535, description="The port of `agent serve`; 0 takes a free one.")
    allowed_hosts: tuple[Annotated[str, Field(min_length=1)], ...] = Field(
        default=(),
        description="Host names, with a port where it is not the usual one, under which browsers and programs may"
        " reach the server, beside loopback; a request that names another host is refused.",
    )
    trusted_proxies: tuple[Annotated[str, Field(min_length=1)], ...] = Field(
        default=(), description="Addresses of reverse proxies whose X-Forwarded-For and -Proto headers are believed."
    )
    root_path: Annotated[str, Field(pattern=r"^(/[A-Za-z0-9._~-]+)*$")] = Field(
        default="", description="The path under which a reverse proxy offers the server, such as /agent."
    )
    public_url: Annotated[str, Field(pattern=r"^https?://[^\s]+[^\s/]$")] | None = Field(
        default=None,
        description="The address under which people reach the server, for links in messages; the one that it listens at"
        " if unset.",
    )
    users: tuple[UserEntry, ...] = Field(
        default=(),
        description="Named users, each as name:role:digest; roles are peer, viewer, approver and operator,"
        " and `agent serve --new-user` makes the entry.",
    )
    concurrency: int = Field(
        default=4, ge=0, le=1000, description="How many runs the server drives at a time; 0 leaves them to workers."
    )
    push_hosts: tuple[Annotated[str, Field(pattern=r"^[^\s/]+:\d+$")], ...] = Field(
        default=(),
        description="Receivers, each as host:port, that A2A callers may name for push notifications although they are"
        " not public or have no TLS; without them only public https addresses are taken.",
    )
    max_body_bytes: int = Field(
        default=1_048_576, ge=1024, description="The longest request body that is read, in bytes."
    )
    requests_per_minute: int = Field(
        default=1200, ge=1, description="How many requests a user may make in a minute, over all of their clients."
    )
    max_watchers: int = Field(
        default=1000, ge=1, description="How many event streams one server process holds open at a time."
    )
    session_hours: float = Field(
        default=12, gt=0, le=720, allow_inf_nan=False, description="How long a browser stays signed in, in hours."
    )
