"""The address of a PostgreSQL server: read from a variable, shown without its password."""

from collections.abc import Mapping
from dataclasses import field

import psycopg
from psycopg.conninfo import conninfo_to_dict

from metier.dataclass import dataclass
from metier.store.failures import StoreUnavailable


@dataclass(frozen=True, slots=True)
class Address:
    conninfo: str = field(repr=False)
    shown: str
    """Host, port, database and user; never the password."""


def read_address(variable: str, environ: Mapping[str, str]) -> Address:
    """Raises `StoreUnavailable` when the variable is not set or is no address."""
    text = environ.get(variable, "").strip()
    if not text:
        raise StoreUnavailable(
            f"The store is PostgreSQL, and {variable} is not set",
            hint=f'Set the address: export {variable}="postgresql://user@host:5432/database"',
        )
    try:
        parts = conninfo_to_dict(text)
    except psycopg.ProgrammingError:
        # Not `from` it: the message of the library repeats the address, password included.
        raise StoreUnavailable(
            f"What {variable} says is not the address of a PostgreSQL server",
            hint='Write it like "postgresql://user:password@host:5432/database"; escape special characters with %',
        ) from None
    return Address(text, _show(parts))


def _show(parts: Mapping[str, object]) -> str:
    host = parts.get("host") or parts.get("hostaddr") or "localhost"
    user = f"{parts['user']}@" if parts.get("user") else ""
    port = f":{parts['port']}" if parts.get("port") else ""
    return f"postgresql://{user}{host}{port}/{parts.get('dbname') or ''}"
