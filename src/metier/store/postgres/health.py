"""What `agent doctor` asks a PostgreSQL server, by one connection of its own. Looks only."""

import time
from collections.abc import Mapping, Sequence
from contextlib import closing

import psycopg

from metier.store.failures import StoreUnavailable
from metier.store.postgres.address import read_address
from metier.store.postgres.text import decode, encode
from metier.store.server_health import ServerHealth

_CONNECT_SECONDS = 5


def look(variable: str, environ: Mapping[str, str], run_ids: Sequence[str]) -> ServerHealth | None:
    """Nothing where it does not answer, or has no tables yet."""
    try:
        address = read_address(variable, environ)
        with closing(psycopg.connect(address.conninfo, connect_timeout=_CONNECT_SECONDS)) as connection:
            began = time.time()
            row = connection.execute("SELECT extract(epoch FROM clock_timestamp())::float8").fetchone()
            ended = time.time()
            known = connection.execute(
                "SELECT run_id FROM agent_runs WHERE run_id = ANY(%s)", ([encode(each) for each in run_ids],)
            )
            return ServerHealth(
                seconds_ahead=float(row[0]) - (began + ended) / 2 if row else 0.0,
                doubt_seconds=(ended - began) / 2,
                known=frozenset(decode(str(run_id)) for (run_id,) in known),
            )
    except (psycopg.Error, StoreUnavailable):
        return None
