"""Links that let the receiver of a message decide one approval without an account on the server.

A link contains a one-time token of the server.
"""

import json
from pathlib import Path
from typing import cast

from msgspec import Struct

from metier.ids import get_user
from metier.runtime.host import Host
from metier.runtime.one_time_tokens import OneTimeTokens
from metier.settings.running_server import find_served

LIFETIME_SECONDS = 24 * 3600
PATH = "/decide"


class DecisionRight(Struct, frozen=True, kw_only=True):
    """The right that a link grants: to decide this approval under this name."""

    approval_id: str
    decider: str


class DecisionLinks(Struct, frozen=True):
    folder: Path
    """Private folder of the user who runs the server."""

    @property
    def _tokens(self) -> OneTimeTokens:
        return OneTimeTokens(folder=self.folder, prefix="decide", lifetime_seconds=LIFETIME_SECONDS)

    def issue(self, right: DecisionRight) -> str:
        """Issue a link and return its token."""
        self._tokens.clear(only_expired=True)
        return self._tokens.issue((right.approval_id, right.decider))

    def find(self, token: str) -> DecisionRight | None:
        """Return the right of the link, or None if it is unknown, used or expired. The link stays valid."""
        values = self._tokens.find(token)
        return DecisionRight(approval_id=values[0], decider=values[1]) if values is not None else None

    def redeem(self, token: str) -> None:
        """Invalidate the link."""
        self._tokens.redeem(token)


def add_links(payload: str, host: Host) -> str:
    """Add a link for each approval in the message, if a server serves the workspace now.

    Links are created when a message is sent, because the outbox must not contain any. A message that is sent again has
    new links; the first decision counts, whichever link it came through.
    """
    message = json.loads(payload)
    approvals = cast("list[str]", message.get("approvals") or [])
    served = find_served(host.home, host.workspace) if approvals else None
    if served is None:
        return payload
    decider = host.settings.notify.decider or get_user() or "operator"
    links = DecisionLinks(served.folder)
    message["links"] = [
        {
            "approval_id": each,
            "url": f"{served.url}{PATH}/{links.issue(DecisionRight(approval_id=each, decider=decider))}",
        }
        for each in approvals
    ]
    return json.dumps(message, ensure_ascii=False)
