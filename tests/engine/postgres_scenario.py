"""The reference run on PostgreSQL: each case has its own database."""

import contextlib
import os
import zlib
from dataclasses import replace
from pathlib import Path

import psycopg
import reference_scenario

from metier.runtime.host import Host
from metier.store.base import Store
from metier.store.machine import Machine
from metier.store.postgres.database import read_address
from metier.store.postgres.store import open_postgres_store
from metier.testing.crash_points import PointedStore, Points
from metier.testing.crash_scenario import Reach, Scenario

VARIABLE = "METIER_TEST_POSTGRES"
"""The address of the server, with `postgres` as its database."""


async def open_pointed_postgres(host: Host, points: Points, *, machine: Machine | None) -> Store:
    """Open a PostgreSQL store with crash points before and after each change."""
    server = os.environ[VARIABLE]
    name = f"crash_{zlib.crc32(str(host.runs).encode()):08x}"
    async with await psycopg.AsyncConnection.connect(server, autocommit=True) as connection:
        with contextlib.suppress(psycopg.errors.DuplicateDatabase):
            await connection.execute(f"CREATE DATABASE {name} TEMPLATE template0".encode())
    address = read_address("URL", {"URL": server.replace("/postgres?", f"/{name}?")})
    return PointedStore(await open_postgres_store(address, machine=machine), points)


def build(folder: Path, reach: Reach) -> Scenario:
    return replace(reference_scenario.build(folder, reach), open_store=open_pointed_postgres)
