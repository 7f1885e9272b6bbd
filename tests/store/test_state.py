"""The state of a conversation from skill code: sync calls, redacted, summarized, serialized."""

import dataclasses
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

import pytest

import metier
from metier.errors import MetierError, UsageError
from metier.store.contexts import MAX_SUMMARY_SIZE_CHARS, ContextChange, ContextEvent, NewEvent
from metier.store.failures import ClaimLost, DuplicateMessageError, VersionConflictError
from metier.store.state_store import StateOptions, StateStore, open_state_store, redact_sensitive
from metier.telemetry.redaction import build_redactor
from metier.testing.fake_machine import FakeMachine

FAKE_KEY = "sk-" + "1234567890abcdefghij"

type Open = Callable[..., StateStore]


@pytest.fixture
def open_state(tmp_path: Path, machine: FakeMachine) -> Open:
    def open_one(context_id: str = "ctx", **options: object) -> StateStore:
        given = StateOptions(redactor=build_redactor(), runs=tmp_path / "runs", environ={}, clock=machine)
        return open_state_store(context_id, dataclasses.replace(given, **options))

    return open_one


def test_a_conversation_continues_in_another_process(open_state: Open) -> None:
    with open_state() as store:
        state = store.get_state()
        assert (state.context_version, state.task_state, state.current_turn) == (0, "pending", 1)
        store.put_fact("inputs", "source", {"type": "csv"})
        store.append_event("asked", {"field": "rows"})
        store.put_state(replace(state, task_state="input_required", input_request={"fields": ["rows"]}))

    with open_state() as store:
        state = store.get_state()
        assert (state.version, state.task_state, state.input_request) == (1, "input_required", {"fields": ["rows"]})
        assert store.list_facts("inputs") == {"source": {"type": "csv"}}
        assert store.get_fact("inputs", "nothing", default="none") == "none"
        assert [(event.event_type, event.payload) for event in store.list_events()] == [("asked", {"field": "rows"})]
        store.delete_fact("inputs", "source")
        assert store.list_facts("inputs") == {}
        store.delete()
        assert store.get_state().version == 0


def test_a_state_that_another_user_replaced_is_not_overwritten(open_state: Open) -> None:
    with open_state() as one, open_state() as two:
        state = one.get_state()
        two.put_state(replace(state, current_turn=2))

        with pytest.raises(VersionConflictError, match="has version 1, not 0; nothing was written"):
            one.put_state(replace(state, current_turn=9))
        with pytest.raises(VersionConflictError):
            one.put_state(one.get_state(), expected_version=0)
        one.put_state(replace(one.get_state(), current_turn=3), expected_version=1)

        assert two.get_state().current_turn == 3


def test_secrets_are_redacted_before_storage(open_state: Open, tmp_path: Path) -> None:
    secret = "-".join(["hunter", "two", "8c1f"])
    with open_state(redactor=build_redactor(values=[secret])) as store:
        store.put_fact("config", "api_key", "plain-" + secret)
        store.put_fact("config", "nested", {"password": "pw-" + secret, "note": f"it is {secret}"})
        store.append_event("said", f"my key is {FAKE_KEY}")
        claim = store.record_message("m1")
        store.complete_message(claim, {"token": FAKE_KEY}, ContextChange(state=replace(store.get_state())))
        store.put_state(replace(store.get_state(), input_request={"text": secret}))
        store.summarize()

        assert store.get_fact("config", "api_key") == "***REDACTED***"
        assert store.get_fact("config", "nested") == {"password": "***REDACTED***", "note": "it is ***REDACTED***"}
        assert store.get_cached_result("m1") == {"token": "***REDACTED***"}
    stored = b"".join(path.read_bytes() for path in (tmp_path / "runs").iterdir() if path.name.startswith("state.db"))
    assert secret.encode() not in stored
    assert FAKE_KEY.encode() not in stored


def test_values_are_redacted_as_documented() -> None:
    assert redact_sensitive({"config": {"api_key": FAKE_KEY}}) == {"config": {"api_key": "***REDACTED***"}}
    assert redact_sensitive(f"api_key={FAKE_KEY}") == "api_key=***REDACTED***"


def test_a_message_is_answered_once_and_duplicates_get_the_stored_answer(open_state: Open) -> None:
    with open_state() as one, open_state() as two:
        claim = one.record_message("m1")
        with pytest.raises(DuplicateMessageError) as early:
            two.record_message("m1")
        assert two.get_cached_result("m1") is None
        one.renew_message(claim)
        one.complete_message(claim, {"answer": 42})

        with pytest.raises(DuplicateMessageError) as late:
            two.record_message("m1")

        assert (early.value.is_done, early.value.result) == (False, None)
        assert (late.value.is_done, late.value.result) == (True, {"answer": 42})
        assert two.answer_once("m1", lambda: "never asked") == {"answer": 42}
        with pytest.raises(ClaimLost):
            one.complete_message(claim, "again")


def test_failed_work_releases_its_message(open_state: Open) -> None:
    def fail() -> None:
        raise KeyError("broken")

    with open_state() as store:
        with pytest.raises(KeyError):
            store.answer_once("m1", fail)
        assert store.answer_once("m1", lambda: "done") == "done"


def test_waiting_for_another_process_with_the_message_times_out(open_state: Open) -> None:
    with open_state() as one, open_state() as two:
        one.record_message("m1", lease_seconds=600)

        with pytest.raises(DuplicateMessageError, match="is being processed by"):
            two.answer_once("m1", lambda: "twice", wait_seconds=0)


def test_a_summary_is_created_before_events_are_dropped(open_state: Open) -> None:
    with open_state() as store:
        for number in range(120):
            store.append_event("user_message", {"text": f"the harbour report number {number}"})

        summary = store.get_state().summary
        assert len(store.list_events()) == 100
        assert "turn 1 user_message: text=the harbour report number 0" in summary
        assert "number 99" in summary
        assert "number 119" in store.summarize()
        assert store.summarize() == store.get_state().summary


def test_a_summary_stays_within_its_limits_and_keeps_frequent_facts(open_state: Open) -> None:
    with open_state() as store:
        store.append_event("note", {"text": "xylophone quux zyzzyva " * 3})
        for number in range(140):
            store.append_event("note", {"text": f"{number} the harbour report is late " * 8})

        summary = store.summarize()

        assert len(summary) <= MAX_SUMMARY_SIZE_CHARS
        assert "harbour" in summary
        assert "xylophone" not in summary


def test_a_summary_comes_from_the_model_if_one_is_available(open_state: Open) -> None:
    def by_model(previous: str, events: Sequence[ContextEvent]) -> str:
        return f"{previous}+{len(events)}"

    def broken(_previous: str, _events: Sequence[ContextEvent]) -> str:
        raise MetierError("The model does not answer")

    with open_state(summarize=by_model) as store:
        for number in range(100):
            store.append_event("note", number)
        assert store.get_state().summary == "+50+50"
    with open_state("other", summarize=broken) as store:
        store.append_event("note", "wind")
        assert store.summarize() == "turn 1 note: wind"


@pytest.mark.parametrize("failure", [ValueError("no\nno"), OSError(5, "no"), TimeoutError(), SystemExit(3)])
def test_summarizer_that_raises_anything_falls_back_to_the_extract(
    open_state: Open, failure: BaseException, caplog: pytest.LogCaptureFixture
) -> None:
    def broken(_previous: str, _events: Sequence[ContextEvent]) -> str:
        raise failure

    with open_state(summarize=broken) as store:
        for number in range(60):
            store.append_event("note", f"wind {number}")

        assert len(store.list_events()) == 60
        assert "turn 1 note: wind 49" in store.get_state().summary
    [record] = [each for each in caplog.records if each.name.startswith("metier")]
    assert (record.levelname, record.exc_info) == ("WARNING", None)
    assert type(failure).__name__ in record.getMessage()
    assert "\n" not in record.getMessage()


def test_summarizer_that_returns_no_text_falls_back_to_the_extract(open_state: Open) -> None:
    def silent(_previous: str, _events: Sequence[ContextEvent]) -> None:
        return None

    with open_state(summarize=silent) as store:
        store.append_event("note", "wind")

        assert store.summarize() == "turn 1 note: wind"


@pytest.mark.parametrize(
    "text", ["the harbour report number {}", "order {} was shipped to customer c{}x as planned", "{}"]
)
def test_automatic_summary_of_many_similar_events_keeps_the_recent_ones(open_state: Open, text: str) -> None:
    with open_state() as store:
        for start in range(0, 1000, 50):
            numbers = range(start, start + 50)
            events = (NewEvent(event_type="note", payload=text.format(number, number)) for number in numbers)
            store.commit(ContextChange(events=tuple(events)))

        lines = store.get_state().summary.splitlines()

    expected = [f"turn 1 note: {text.format(number, number)}" for number in range(1000)]
    assert len(lines) > 90
    assert lines == expected[-len(lines) :]


def test_automatic_summary_keeps_recent_events_that_share_few_words(open_state: Open) -> None:
    with open_state() as store:
        for number in range(200):
            store.append_event("note", {"text": f"{number} the harbour report is late " * 6})
        for word in ("alpha", "bravo", "charlie"):
            store.append_event("note", {"text": word})

        summary = store.summarize()

    assert all(word in summary for word in ("alpha", "bravo", "charlie", "harbour"))


@pytest.mark.anyio
async def test_sync_use_in_an_event_loop_raises_with_a_hint(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="runs in an event loop"):
        open_state_store("ctx", StateOptions(redactor=build_redactor(), runs=tmp_path, environ={}))


def test_the_environment_selects_the_store_and_an_invalid_value_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("STATE_STORE_BACKEND", "sqlite")
    monkeypatch.delenv("AGENT_STORE_BACKEND", raising=False)
    metier.create_state_store("ctx").close()
    assert (tmp_path / "runs" / "state.db").is_file()

    monkeypatch.setenv("STATE_STORE_BACKEND", "oracle")
    with pytest.raises(metier.ConfigError) as refused:
        metier.create_state_store("ctx")
    assert "STATE_STORE_BACKEND" in str([problem.render() for problem in refused.value.problems])
    monkeypatch.delenv("STATE_STORE_BACKEND")
    with pytest.raises(UsageError, match="context_id must not be empty"):
        metier.create_state_store("")
