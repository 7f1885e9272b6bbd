"""Messages for the outbox: one place that builds their keys."""

import hashlib
import json
from collections.abc import Mapping
from typing import NamedTuple

from pydantic import JsonValue

from metier.runtime.host import Host
from metier.store.outbox import OutboxRow


class Subject(NamedTuple):
    """The entry that a message is about. The message is sent after the entry is in the journal."""

    run_id: str
    seq: int


def build_row(
    host: Host, subject: Subject, message: Mapping[str, JsonValue], *, channel: str, name: str = ""
) -> OutboxRow:
    """Build a message that is due now. Its key derives from `name`, or from the entry and the channel.

    An entry that is written again after a kill gives the same key, so its message is there once.
    """
    words = name or f"{subject.run_id}:{subject.seq}:{channel}"
    key = hashlib.sha256(words.encode()).hexdigest()[:32]
    now = host.clock.now()
    return OutboxRow(
        key=key,
        queue=host.settings.worker.queue,
        channel=channel,
        run_id=subject.run_id,
        seq=subject.seq,
        payload=json.dumps({"id": key, **message}, ensure_ascii=False),
        created_at=now,
        due_at=now,
    )
