"""Run IDs have the format that the settings show."""

import re
from datetime import UTC, datetime

from metier.ids import SystemIds
from metier.telemetry.options import LoggingOptions


def test_run_ids_have_the_configured_format() -> None:
    form = re.sub(r"[YMDHS]", r"\\d", LoggingOptions().run_id_pattern).replace("<short-uuid>", "[0-9a-f]{12}")

    run_id = SystemIds().run_id(datetime(2026, 1, 2, 3, 4, 5, tzinfo=UTC))

    assert re.fullmatch(form, run_id), (form, run_id)
    assert run_id.startswith("20260102-030405-")
