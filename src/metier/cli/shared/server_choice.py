"""The server that `agent --server URL` names. Commands that can run on a server ask for it."""

from collections.abc import Generator
from contextlib import contextmanager
from contextvars import ContextVar

_url: ContextVar[str] = ContextVar("server_url", default="")


def get_server_url() -> str:
    """Return the URL of the server; empty for this workspace."""
    return _url.get()


@contextmanager
def using_server(url: str) -> Generator[None]:
    """Run commands on this server inside the block."""
    token = _url.set(url)
    try:
        yield
    finally:
        _url.reset(token)
