"""Both stores fulfill the store contract, with two handles on one database."""

import pytest

from metier.testing.store_case import Check, Subject
from metier.testing.store_contract import CHECKS, run_check


@pytest.mark.anyio
@pytest.mark.parametrize("check", CHECKS, ids=lambda check: check.__name__)
async def test_sqlite_fulfills_the_store_contract(check: Check, subject: Subject) -> None:
    await run_check(check, subject)


@pytest.mark.anyio
@pytest.mark.parametrize("check", CHECKS, ids=lambda check: check.__name__)
async def test_postgres_fulfills_the_store_contract(check: Check, postgres_subject: Subject) -> None:
    await run_check(check, postgres_subject)
