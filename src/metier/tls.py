"""The TLS context of HTTP clients: trusted certificates are read at the first connection that needs them, once."""

import functools
import os
import ssl
from collections.abc import Iterable
from typing import Any, Self, override

import httpx2


class LateContext(ssl.SSLContext):
    """Stands for the default context of `httpx2` and makes that one when a connection is secured.

    Reading the certificates of a system costs some 20 ms of processor time, which a model on this machine never needs.
    Contexts that read the same certificates share them.
    """

    _follows_environment: bool
    _protocols: tuple[str, ...]

    def __new__(cls, *, follows_environment: bool = True) -> Self:
        """`follows_environment`: whether `SSL_CERT_FILE` and `SSL_CERT_DIR` count."""
        made = super().__new__(cls, ssl.PROTOCOL_TLS_CLIENT)
        made._follows_environment = follows_environment
        made._protocols = ()
        return made

    @override
    def set_alpn_protocols(self, alpn_protocols: Iterable[str]) -> None:
        self._protocols = tuple(alpn_protocols)

    @override
    def wrap_bio(
        self,
        incoming: ssl.MemoryBIO,
        outgoing: ssl.MemoryBIO,
        server_side: bool = False,
        server_hostname: str | bytes | None = None,
        session: ssl.SSLSession | None = None,
    ) -> ssl.SSLObject:
        return self._read().wrap_bio(incoming, outgoing, server_side, server_hostname, session)

    @override
    def wrap_socket(self, *args: Any, **named: Any) -> ssl.SSLSocket:
        return self._read().wrap_socket(*args, **named)

    def _read(self) -> ssl.SSLContext:
        if not self._follows_environment:
            return _read_certificates(self._protocols, None)
        return _read_certificates(
            self._protocols, (os.environ.get("SSL_CERT_FILE", ""), os.environ.get("SSL_CERT_DIR", ""))
        )


@functools.cache
def _read_certificates(protocols: tuple[str, ...], places: tuple[str, str] | None) -> ssl.SSLContext:
    """`places` are what the environment names; the library reads them by itself. Raises `ssl.SSLError`."""
    try:
        read = httpx2.create_ssl_context(trust_env=places is not None)
    except OSError as error:
        named = next(filter(None, places or ()), "of this system")
        why = f"the trusted certificates {named} cannot be read: {error.strerror or error}"
        raise ssl.SSLError(error.errno or 0, why) from error
    if protocols:
        read.set_alpn_protocols(protocols)
    return read
