"""TLS contexts of HTTP clients."""

import functools
import os
import ssl

import httpx2


def choose_context(url: str, *, trust_env: bool = True) -> ssl.SSLContext:
    """Return the context for a client that only connects to this address. Raises `httpx2.ConnectError`."""
    if url.lower().startswith("https:"):
        return load_context(trust_env=trust_env)
    # A context without certificates, so no TLS connection succeeds. Loading the system's takes 20 ms.
    return ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)


def load_context(*, trust_env: bool = True) -> ssl.SSLContext:
    """Return the shared context of all clients. `trust_env` applies `SSL_CERT_FILE` and `SSL_CERT_DIR`.

    Raises `httpx2.ConnectError` if the certificates cannot be read, like any connection that cannot be secured.
    """
    paths = (os.environ.get("SSL_CERT_FILE", ""), os.environ.get("SSL_CERT_DIR", "")) if trust_env else ("", "")
    try:
        return _load(paths, trust_env=trust_env)
    except OSError as error:
        named = next(filter(None, paths), "of this system")
        reason = f"the trusted certificates {named} cannot be read: {error.strerror or error}"
        raise httpx2.ConnectError(reason) from error


@functools.cache
def _load(paths: tuple[str, str], *, trust_env: bool) -> ssl.SSLContext:
    del paths  # only the cache key: the library reads them itself
    return httpx2.create_ssl_context(trust_env=trust_env)
