"""What may happen to one call: allowed, asked about, or denied, and who said so. Pure values."""

from typing import Literal

from msgspec import Struct


class Verdict(Struct, frozen=True, kw_only=True):
    decision: Literal["allow", "ask", "deny"]
    reason: str = ""
    rule: str = ""
    """Which rule of which scope, empty where the profile's default spoke."""
    read_only: bool = False
    """Allowed only in the read-only sandbox: the tables say that it reads, and the sandbox holds it to that."""
    is_child_question: bool = False
    """The profile asks because the call starts a child run; a child that may only read needs no answer."""
    code: str = ""
    """Of a call that could not run whatever rules say: `unknown_tool`, `invalid_input` or `permission_denied`."""


ALLOW = Verdict(decision="allow")
