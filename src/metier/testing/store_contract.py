"""The contract of a store, as checks that any implementation can run.

    @pytest.mark.parametrize("check", CHECKS, ids=lambda check: check.__name__)
    async def test_store(check: Check, subject: Subject) -> None:
        await run_check(check, subject)

Each check gets two handles on one empty database. A failed check raises `AssertionError`.
"""

from contextlib import AsyncExitStack

from metier.testing.store_case import Case, Check, Subject
from metier.testing.store_context_checks import CONTEXT_CHECKS
from metier.testing.store_index_checks import INDEX_CHECKS
from metier.testing.store_journal_checks import JOURNAL_CHECKS
from metier.testing.store_outbox_checks import OUTBOX_CHECKS
from metier.testing.store_queue_checks import QUEUE_CHECKS
from metier.testing.store_schedule_checks import SCHEDULE_CHECKS
from metier.testing.store_usage_checks import USAGE_CHECKS

CHECKS: tuple[Check, ...] = (
    *JOURNAL_CHECKS,
    *INDEX_CHECKS,
    *QUEUE_CHECKS,
    *CONTEXT_CHECKS,
    *SCHEDULE_CHECKS,
    *OUTBOX_CHECKS,
    *USAGE_CHECKS,
)


async def run_check(check: Check, subject: Subject) -> None:
    async with AsyncExitStack() as opened:
        first = await subject.open()
        opened.push_async_callback(first.close)
        second = await subject.open()
        opened.push_async_callback(second.close)
        await check(Case(first, second, subject))
