"""Resume tokens: forged, expired, replayed, truncated and foreign ones are rejected equally."""

import dataclasses
import random
import string
import sys
from collections.abc import Callable
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from types import FrameType

import pytest

from metier.errors import UsageError
from metier.store.contexts import ContextChange
from metier.store.failures import ResumeTokenRefused
from metier.store.resume_tokens import ResumeKeys, TokenSubject, check_token, load_resume_keys, sign_token
from metier.store.state_store import (
    StateOptions,
    StateStore,
    generate_resume_token,
    open_state_store,
    validate_resume_token,
)
from metier.telemetry.redaction import build_redactor
from metier.testing.fake_machine import FakeMachine

NOON = datetime(2026, 11, 1, 12, 0, tzinfo=UTC)
KEYS = ResumeKeys((b"k" * 32,))
WANTED = TokenSubject(context_id="ctx:with:colons")

type Open = Callable[..., StateStore]


@pytest.fixture
def options(tmp_path: Path, machine: FakeMachine) -> StateOptions:
    return StateOptions(
        redactor=build_redactor(), runs=tmp_path / "runs", environ={"HOME": str(tmp_path / "home")}, clock=machine
    )


def mutations(token: str) -> list[str]:
    """Return truncations, single-character mutations, and random changes."""
    randomness = random.Random(1)
    letters = string.ascii_letters + string.digits + ":-_ \x00é"
    changed = [token[:end] for end in range(len(token))] + [token[start:] for start in range(1, len(token))]
    for place in range(len(token)):
        changed.append(token[:place] + token[place + 1 :])
        changed.append(token[:place] + token[place] * 2 + token[place + 1 :])
        changed.append(token[:place] + token[place].swapcase() + token[place + 1 :])
        changed += [token[:place] + letter + token[place + 1 :] for letter in randomness.sample(letters, 8)]
    context, version, turn, expiry, signature = token.rsplit(":", 4)
    for body in (
        f"{context}:{int(version) + 1}:{turn}:{expiry}",
        f"{context}:0{version}:{turn}:{expiry}",
        f"{context}:{version}:{int(turn) + 1}:{expiry}",
        f"{context}:{version}:{turn}:{int(expiry) + 3600}",
        f"{context}:{version}:-1:{expiry}",
        f"other:{version}:{turn}:{expiry}",
        f"{context}:{version}:{turn}:{'9' * 400}",
    ):
        changed += [f"{body}:{signature}", f"{body}:{'0' * 64}", f"{body}:", body]
    changed += [token + extra for extra in ("\n", " ", ":", "\x00", "0")]
    changed += ["".join(randomness.choices(letters, k=randomness.randint(0, 200))) for _ in range(200)]
    changed += ["x" * 1_000_000, "\udcff" * 70, "", ":::::", "٣:٣:٣:٣:٣"]
    return [text for text in dict.fromkeys(changed) if text != token]


def test_every_modified_token_is_rejected_equally_and_the_original_still_works(options: StateOptions) -> None:
    with open_state_store("ctx:with:colons", options) as store:
        store.put_state(replace(store.get_state(), task_state="input_required"))
        token = store.generate_resume_token()
        wrong = mutations(token)
        said: set[tuple[str, str, int]] = set()

        for text in wrong:
            with pytest.raises(ResumeTokenRefused) as refused:
                store.redeem_resume_token(text)
            said.add((refused.value.message, refused.value.hint, refused.value.exit_code))

        assert len(wrong) >= 1000
        assert len(said) == 1
        assert store.get_state().version == 1
        assert store.redeem_resume_token(token).version == 2


def test_a_token_works_once(options: StateOptions) -> None:
    with open_state_store("ctx", options) as store:
        store.put_state(store.get_state())
        token, another = store.generate_resume_token(), store.generate_resume_token(lifetime_seconds=60)

        assert validate_resume_token(token, store)
        assert not validate_resume_token(token, store)
        assert not validate_resume_token(another, store)
        assert validate_resume_token(store.generate_resume_token(), store)


def test_a_token_of_an_older_state_is_refused(options: StateOptions) -> None:
    with open_state_store("ctx", options) as store:
        store.put_state(store.get_state())
        token = generate_resume_token("ctx", version=1, turn=1, options=options)
        assert token.startswith("ctx:1:1:")
        store.put_state(store.get_state())

        assert not validate_resume_token(token, store)
        assert validate_resume_token(generate_resume_token("ctx", version=2, turn=1, options=options), store)


def test_a_token_expires(options: StateOptions, machine: FakeMachine) -> None:
    with open_state_store("ctx", options) as store:
        store.put_state(store.get_state())
        token = store.generate_resume_token(lifetime_seconds=60)
        machine.wall += timedelta(seconds=61)

        assert not validate_resume_token(token, store)


def test_a_token_is_bound_to_its_context_and_recipient(options: StateOptions) -> None:
    with open_state_store("ctx", options) as store, open_state_store("other", options) as other:
        store.put_state(store.get_state())
        other.put_state(other.get_state())
        token = store.generate_resume_token(bound_to="ann")

        assert not validate_resume_token(token, other)
        assert not validate_resume_token(token, store)
        with pytest.raises(ResumeTokenRefused):
            store.redeem_resume_token(token, bound_to="eve")
        assert store.redeem_resume_token(token, bound_to="ann").version == 2


def test_a_message_redelivered_after_a_crash_can_use_its_token_again(options: StateOptions) -> None:
    with open_state_store("ctx", options) as store:
        store.put_state(store.get_state())
        token = store.generate_resume_token()
        state = store.redeem_resume_token(token, message_id="m1")

        assert store.redeem_resume_token(token, message_id="m1") == state
        for other in ("m2", ""):
            with pytest.raises(ResumeTokenRefused):
                store.redeem_resume_token(token, message_id=other)
        claim = store.record_message("m1")
        started = store.put_state(replace(state, task_state="in_progress"))
        assert store.redeem_resume_token(token, message_id="m1") == started
        store.complete_message(claim, "answer", ContextChange(state=started))
        with pytest.raises(ResumeTokenRefused):
            store.redeem_resume_token(token, message_id="m1")


def test_a_token_of_another_installation_is_refused(options: StateOptions, tmp_path: Path) -> None:
    foreign = generate_resume_token(
        "ctx", version=1, turn=1, options=dataclasses.replace(options, runs=tmp_path / "elsewhere")
    )

    with open_state_store("ctx", options) as store:
        store.put_state(store.get_state())

        assert not validate_resume_token(foreign, store)


def list_calls(token: str) -> list[str]:
    """Return the functions called during the check of an invalid token."""
    called: list[str] = []

    def note(frame: FrameType, event: str, argument: object) -> None:
        if event in ("call", "c_call"):
            called.append(frame.f_code.co_qualname if event == "call" else getattr(argument, "__qualname__", ""))

    sys.setprofile(note)
    try:
        found = check_token(token, WANTED, keys=KEYS, now=NOON)
    finally:
        sys.setprofile(None)
    assert found is None
    return called


def test_validation_does_the_same_work_for_every_error() -> None:
    """Equal calls take equal time; `compare_digest` compares."""
    token = sign_token(WANTED, version=3, turn=2, expires_at=NOON + timedelta(hours=1), keys=KEYS)
    first = token[:-64] + ("0" if token[-64] != "0" else "1") + token[-63:]
    last = token[:-1] + ("0" if token[-1] != "0" else "1")
    other = token.replace("ctx", "cty", 1)
    expired = sign_token(WANTED, version=3, turn=2, expires_at=NOON - timedelta(hours=1), keys=KEYS)

    calls = [list_calls(text) for text in (first, last, other, expired)]

    assert calls[0].count("compare_digest") == 2
    assert calls == [calls[0]] * 4


def test_the_key_is_created_once_and_readable_only_by_its_owner(tmp_path: Path) -> None:
    runs, home = tmp_path / "work/runs", tmp_path / "home"
    keys = load_resume_keys(runs, {}, home=home)

    assert load_resume_keys(runs, {"HOME": str(home)}) == keys
    assert load_resume_keys(tmp_path / "other/runs", {}, home=home) != keys
    assert not runs.exists()
    path = home / ".agent/keys/store.key"
    assert path.stat().st_mode & 0o777 == 0o600
    assert path.parent.stat().st_mode & 0o777 == 0o700
    assert len(path.read_text().strip()) == 64
    assert "secrets" not in repr(keys)
    path.chmod(0o644)
    with pytest.raises(UsageError, match="readable by other users"):
        load_resume_keys(runs, {}, home=home)


def test_a_secret_can_be_rotated_while_older_tokens_stay_valid(tmp_path: Path) -> None:
    old, new = "o" * 32, "n" * 32
    expires_at = NOON + timedelta(hours=1)
    before = load_resume_keys(tmp_path, {"AGENT_RESUME_SECRET": old})
    during = load_resume_keys(tmp_path, {"AGENT_RESUME_SECRET": f"{new} {old}"})
    after = load_resume_keys(tmp_path, {"AGENT_RESUME_SECRET": new})
    token = sign_token(WANTED, version=1, turn=1, expires_at=expires_at, keys=before)
    newer = sign_token(WANTED, version=1, turn=1, expires_at=expires_at, keys=during)

    def is_good(text: str, keys: ResumeKeys) -> bool:
        return check_token(text, WANTED, keys=keys, now=NOON) is not None

    assert [is_good(token, keys) for keys in (before, during, after)] == [True, True, False]
    assert [is_good(newer, keys) for keys in (before, during, after)] == [False, True, True]
    assert list(tmp_path.iterdir()) == []
    with pytest.raises(UsageError, match="shorter than 32 characters"):
        load_resume_keys(tmp_path, {"AGENT_RESUME_SECRET": "short"})


def test_token_in_a_text_is_redacted_and_a_digest_is_not() -> None:
    token = sign_token(WANTED, version=3, turn=2, expires_at=NOON + timedelta(hours=1), keys=KEYS)
    digest = token.rpartition(":")[2]

    shown = build_redactor().redact(f"Go on with {token} or '{token}'; the file has sha256:{digest}")

    assert digest not in shown.replace(f"sha256:{digest}", "")
    assert f"sha256:{digest}" in shown
