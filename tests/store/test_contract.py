"""Both stores keep the contract of every store, with two handles on one database."""

import inspect

import pytest

from metier.testing import (
    store_context_checks,
    store_index_checks,
    store_journal_checks,
    store_outbox_checks,
    store_queue_checks,
    store_schedule_checks,
    store_usage_checks,
)
from metier.testing.store_case import Check, Subject
from metier.testing.store_contract import CHECKS, run_check

CHECK_MODULES = (
    store_journal_checks,
    store_index_checks,
    store_queue_checks,
    store_context_checks,
    store_outbox_checks,
    store_schedule_checks,
    store_usage_checks,
)


@pytest.mark.anyio
@pytest.mark.parametrize("check", CHECKS, ids=lambda check: check.__name__)
async def test_sqlite_keeps_the_contract(check: Check, subject: Subject) -> None:
    await run_check(check, subject)


@pytest.mark.anyio
@pytest.mark.parametrize("check", CHECKS, ids=lambda check: check.__name__)
async def test_postgres_keeps_the_contract(check: Check, postgres_subject: Subject) -> None:
    await run_check(check, postgres_subject)


def test_no_check_is_left_out() -> None:
    written = {
        name
        for module in CHECK_MODULES
        for name, value in inspect.getmembers(module, inspect.iscoroutinefunction)
        if value.__module__ == module.__name__ and not name.startswith("_")
    }

    assert {check.__name__ for check in CHECKS} == written
