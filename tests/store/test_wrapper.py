"""Store wrappers: a replay's wrapper forwards no write to the real store."""

from metier.engine.replay.recorded_store import RecordedStore
from metier.store.base import Store
from metier.store.wrapper import StoreReader, StoreWrapper


def names_of(kind: type) -> set[str]:
    return {name for name in vars(kind) if not name.startswith("_")}


def test_a_wrapper_forwards_every_method_of_a_store() -> None:
    assert names_of(StoreReader) | names_of(StoreWrapper) == names_of(Store)


def test_a_replay_store_overrides_every_write_method() -> None:
    writes = names_of(Store) - names_of(StoreReader)

    assert {"append", "create_run", "delete_runs", "decide_approval"} <= writes
    assert writes <= names_of(RecordedStore)
