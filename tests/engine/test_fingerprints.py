"""The hash of a request depends on the request alone, and hashes of 0.2 are still recognized."""

import hashlib

from metier.engine.turn_cache import Fingerprints
from metier.messages import ToolSpec, user
from metier.providers.base import ModelRequest

PLAIN = ModelRequest(model="m", messages=(user("Hi"),))
TOOL = ToolSpec(name="Read", description="Read a file", input_schema={})


def test_request_without_tools_has_one_hash_whatever_was_sent_before() -> None:
    used = Fingerprints()
    used.of(ModelRequest(model="m", messages=PLAIN.messages, tools=(TOOL,)))

    assert used.of(PLAIN) == Fingerprints().of(PLAIN)


def test_hash_that_an_older_version_recorded_after_a_request_with_tools_matches() -> None:
    text = b'{"role":"user","parts":[{"kind":"text","text":"Hi"}]}'
    recorded = hashlib.sha256(b"m" + hashlib.sha256(b"").digest() + hashlib.sha256(text).digest()).hexdigest()[:32]

    assert Fingerprints().match(PLAIN, recorded).hash == recorded
    assert Fingerprints().match(PLAIN, "0" * 32) == Fingerprints().of(PLAIN)
