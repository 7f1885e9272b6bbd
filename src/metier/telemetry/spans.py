"""The span of an event and its parent: run, turn, model call, step, skill, question. Pure.

Ids are derived from the run and the event's subject, so a start and its end share one, in any process and after a
resume.
"""

from functools import lru_cache
from typing import NamedTuple

from msgspec.structs import asdict

from metier.events.model import LlmRequestMeta
from metier.events.payload import Payload
from metier.telemetry.otel.trace_context import build_span_id

_MODEL_CALLS = frozenset({"llm_request_sent", "llm_response_received", "llm_retry_scheduled", "llm_request_failed"})
_SKILLS = frozenset({"skill_invocation_started", "skill_invocation_finished"})
_QUESTIONS = ("approval_id", "request_id")
RUN = "run"


class Span(NamedTuple):
    id: str
    parent: str
    """Empty for the run's own span."""


def get_span(payload: Payload, run_id: str) -> Span:
    own, parent = _name(payload)
    return Span(_build_id(run_id, own), _build_id(run_id, parent) if parent else "")


def _name(payload: Payload) -> tuple[str, str]:
    fields = asdict(payload)
    if payload.event_type in _MODEL_CALLS:
        meta = fields["meta"]
        attempt = meta.attempt if isinstance(meta, LlmRequestMeta) else 1
        return f"model:{fields['turn']}:{attempt}", f"turn:{fields['turn']}"
    if payload.event_type in _SKILLS:
        return f"skill:{fields['skill_name']}", RUN
    for name in _QUESTIONS:
        if fields.get(name):
            return f"{name}:{fields[name]}", RUN
    if step := fields.get("step_id"):
        turn = str(step).partition(".")[0]
        return f"step:{step}", f"turn:{turn}"
    if isinstance(turn := fields.get("turn"), int):
        return f"turn:{turn}", RUN
    return RUN, ""


@lru_cache(maxsize=4096)
def _build_id(run_id: str, name: str) -> str:
    return build_span_id(run_id, name)
