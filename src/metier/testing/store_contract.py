"""The contract of a store, as checks that any implementation can run.

    @pytest.mark.parametrize("check", CHECKS, ids=lambda check: check.__name__)
    async def test_store(check: Check, subject: Subject) -> None:
        await run_check(check, subject)

Each check gets two handles on one empty database. A failed check raises `AssertionError`.
"""

from contextlib import AsyncExitStack

from metier.testing import store_context_checks, store_queue_checks, store_run_checks
from metier.testing.store_case import Case, Check, Subject

CHECKS: tuple[Check, ...] = tuple(
    check
    for module in (store_run_checks, store_queue_checks, store_context_checks)
    for name, check in vars(module).items()
    if name.startswith("check_")
)
"""Every `check_…` function of the modules, in the order of definition."""


async def run_check(check: Check, subject: Subject) -> None:
    async with AsyncExitStack() as opened:
        first = await subject.open()
        opened.push_async_callback(first.close)
        second = await subject.open()
        opened.push_async_callback(second.close)
        await check(Case(first, second, subject))
