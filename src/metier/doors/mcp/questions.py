"""A question of a run as an elicitation of MCP."""

import mcp_types as types

from metier.doors.forms import build_schema
from metier.doors.mcp.door import McpDoor
from metier.engine.entries import InputAsked


def build_form(door: McpDoor, asked: InputAsked) -> types.ElicitRequestFormParams:
    """The question with one field for each value that it asks for."""
    schema = door.clean.value(build_schema(asked))
    assert isinstance(schema, dict)
    return types.ElicitRequestFormParams(message=door.clean.text(asked.question), requested_schema=schema)
