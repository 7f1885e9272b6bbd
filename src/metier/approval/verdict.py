"""The verdict for one call: allow, ask or deny, and the deciding rule. Pure values."""

from typing import Literal

from msgspec import Struct


class Verdict(Struct, frozen=True, kw_only=True):
    decision: Literal["allow", "ask", "deny"]
    reason: str = ""
    rule: str = ""
    """The deciding rule and its scope; empty if the profile's default decided."""
    read_only: bool = False
    """Allowed only in the read-only sandbox: the tables say that it reads, and the sandbox holds it to that."""
    is_child_question: bool = False
    """The profile asks because the call starts a child run; a child that may only read needs no answer."""
    code: str = ""
    """Of a call that could not run whatever rules say: `unknown_tool`, `invalid_input` or `permission_denied`."""


ALLOW = Verdict(decision="allow")
