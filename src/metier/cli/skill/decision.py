"""Confirmation of a command, by a flag or at the terminal. Without a terminal nothing is asked."""

import signal
import sys

from msgspec import Struct

from metier.cli.shared.context import is_at_terminal
from metier.cli.shared.output import warn_line
from metier.cli.skill.view import render_proposal
from metier.errors import UsageError
from metier.skills.install.operations import Answer, Proposal


class Decision(Struct, frozen=True):
    flag: Answer | None
    """The flag's value; None means to ask."""

    @staticmethod
    def of_flags(*, yes: bool, no_trust: bool) -> "Decision":
        if yes and no_trust:
            raise UsageError("--yes and --no-trust are mutually exclusive", hint="Use one of them")
        return Decision("trust" if yes else "keep_untrusted" if no_trust else None)

    def answer(self, proposal: Proposal) -> Answer:
        """Show the report on stderr, then return the flag's answer or the user's."""
        for line in render_proposal(proposal):
            warn_line(line)
        if self.flag is not None:
            return self.flag
        _check_terminal("Review the report above, then pass --yes to install and trust, or --no-trust")
        word = "Update" if proposal.previous else "Install"
        reply = _ask(f"{word} and trust it? [y]es, [u]ntrusted, [N]o: ")
        if reply in ("y", "yes"):
            return "trust"
        return "keep_untrusted" if reply in ("u", "untrusted") else "stop"


def decide_interactively(question: str, *, flag: str) -> bool:
    """Ask for yes or no. Raises `UsageError` without a terminal."""
    _check_terminal(f"Pass {flag} to skip the question")
    return _ask(f"{question} [y/N]: ") in ("y", "yes")


def ask_at_terminal(prompt: str) -> str | None:
    """Ask at the terminal and return the reply in lower case; None without a terminal."""
    return _ask(prompt) if is_at_terminal() else None


def _ask(prompt: str) -> str:
    # The event loop handles the first Ctrl-C and cannot act on it during a question. A user who sees the
    # question may press it at once, so this comes first.
    previous = signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        sys.stderr.write(prompt)
        sys.stderr.flush()
        return sys.stdin.readline().strip().lower()
    finally:
        signal.signal(signal.SIGINT, previous)


def _check_terminal(hint: str) -> None:
    if not is_at_terminal():
        raise UsageError("Cannot ask for confirmation: not a terminal", hint=hint)
