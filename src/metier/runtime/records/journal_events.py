"""The events of a run as its journal tells them: where its event log is damaged, or on the machine that drives it."""

from collections.abc import Iterable

from metier.engine.entries import Entry
from metier.engine.journal import RunLog
from metier.engine.projection import project
from metier.engine.services import Services
from metier.engine.state import RunState, apply
from metier.events import PromptLayerCut
from metier.runtime.cleaning import build_place_cleaner
from metier.runtime.host import Host
from metier.telemetry.sinks import EventWriter, RunScope, Sink, get_redaction_mode


class Teller:
    """Folds a journal as it grows, and tells a sink of it. Events that only watched are in no journal."""

    def __init__(self, place: Host, run_id: str, sink: Sink) -> None:
        self.state = RunState(run_id)
        self._place = place
        self._sink = sink
        self._writer: EventWriter | None = None

    def tell(self, entries: Iterable[Entry]) -> int:
        """Those that come next; how many events they came to. Each is stamped with the time at which it is told."""
        count = 0
        for entry in entries:
            apply(self.state, entry)
            self._writer = self._writer or self._open()
            for payload in project(entry, self.state):
                self._writer.emit(payload, entry=self.state.seq, turn=self.state.turn, skill=self.state.skill)
                count += 1
        return count

    def close(self) -> None:
        self._sink.close()

    def _open(self) -> EventWriter:
        started = self.state.started
        assert started is not None, "a journal begins with the start of its run"
        mode = get_redaction_mode(self._place.settings.logging)
        scope = RunScope(run_id=self.state.run_id, trace_id=started.trace_id, redaction_mode=mode)
        cleaner = build_place_cleaner(self._place)
        return EventWriter(self._sink, cleaner, scope=scope, clock=self._place.clock, ids=self._place.ids)


def tell_of_cuts(log: RunLog, services: Services) -> None:
    """Files of the prompt that are larger than their layer may be."""
    for layer, source in services.instructions.sources.items():
        if source.left_out:
            log.emit(PromptLayerCut(layer=layer, source=source.file, left_out_characters=source.left_out))
