"""The text of a call that a user decides about: masked secrets, and nothing hidden that would run."""

import pytest

from metier.telemetry.call_text import reveal_value, show_call
from metier.telemetry.redaction import build_redactor

TOKEN = "ghp_" + "0123456789abcdefghijABCDEFGHIJ012345"
REDACTOR = build_redactor(values=["exact-" + "value-42"])


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("echo \x1b]0; touch a #\x07 b", "echo \\x1b]0; touch a #\\x07 b"),
        ("echo \x1b[0; touch a #m", "echo \\x1b[0; touch a #m"),
        ("echo \x1bP; touch a #\x1b\\", "echo \\x1bP; touch a #\\x1b\\"),
        ("cat a\u202eb", "cat a\\u202eb"),
        (f"TOKEN={TOKEN};touch a", "TOKEN=***REDACTED***;touch a"),
        ('sshpass -p "a;touch a"', 'sshpass -p "a;touch a"'),
        (f"TOKEN={TOKEN} make", "TOKEN=***REDACTED*** make"),
        ("curl -u me:exact-value-42;touch a", "curl -u me:***REDACTED***;touch a"),
        ("first\r\nsecond\tthird", "first\nsecond\tthird"),
    ],
)
def test_only_secrets_of_a_call_are_hidden(text: str, shown: str) -> None:
    assert show_call({"command": text, "list": [text]}, REDACTOR) == {"command": shown, "list": [shown]}


def test_value_of_an_argument_with_a_secret_name_is_masked() -> None:
    assert show_call({"password": "Tr0ub4dor;3", "count": 3}, REDACTOR) == {"password": "***REDACTED***", "count": 3}


def test_arguments_of_events_keep_every_character_visible() -> None:
    assert reveal_value({"a\x1b": ["\x1b]0;x\x07", None]}) == {"a\\x1b": ["\\x1b]0;x\\x07", None]}
