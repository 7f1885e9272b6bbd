"""A span that has started and not ended."""

from dataclasses import dataclass
from datetime import datetime

from metier.telemetry.otel import names
from metier.telemetry.otel.span import AttributeValue, SpanKind

_SUBJECT_OF = {
    names.CHAT: names.REQUEST_MODEL,
    names.EXECUTE_TOOL: names.TOOL_NAME,
    names.INVOKE_AGENT: names.AGENT_NAME,
    names.INVOKE_WORKFLOW: names.WORKFLOW_NAME,
    names.RUN_SCRIPT: names.SCRIPT,
    names.AWAIT_APPROVAL: names.TOOL_NAME,
}
"""The attribute whose value is in the name of a span, by operation."""


@dataclass(slots=True, kw_only=True)
class OpenSpan:
    span_id: str
    parent_id: str
    began: datetime
    attributes: dict[str, AttributeValue]
    kind: SpanKind = "internal"

    @property
    def name(self) -> str:
        """As the conventions build it: the operation and its subject, both few in number."""
        operation = str(self.attributes.get(names.OPERATION, ""))
        subject = self.attributes.get(_SUBJECT_OF.get(operation, ""), "")
        return f"{operation} {subject}" if subject else operation

    @property
    def call_id(self) -> str:
        return str(self.attributes.get(names.TOOL_CALL_ID, ""))
