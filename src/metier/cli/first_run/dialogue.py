"""The first-run dialogue: who answers, with which model, how freely, kept where. Asks; writes nothing itself."""

import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Literal

import anyio

from metier.cli.shared.output import warn_line
from metier.dataclass import dataclass
from metier.errors import MetierError, UsageError
from metier.providers.registry import BUILT_IN, check_base_url
from metier.runtime.providers.setup import (
    Candidate,
    ModelChoice,
    check_candidate,
    find_candidates,
    propose_model,
)

type ReadLine = Callable[[str], str]
"""Shows a prompt and gives the line behind it. Raises `EOFError` when there is no more."""

type Scope = Literal["everywhere", "here"]

PROFILES: Sequence[tuple[Literal["guarded", "permissive", "strict"], str]] = (
    ("guarded", "asks you before it changes something"),
    ("permissive", "asks nothing"),
    ("strict", "asks, and runs programs in a sandbox"),
)
_MOST_SHOWN = 20
"""Models that are listed; the name of any other can be typed."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SetUp:
    """What the person decided."""

    choice: ModelChoice
    scope: Scope
    key: tuple[str, str] | None = None
    """A variable and the key that was typed, for this process only."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Dialogue:
    read_line: ReadLine
    read_secret: ReadLine
    environ: Mapping[str, str]

    def hold(self, *, may_write_here: bool) -> SetUp:
        """Ask until everything is known. Raises `EOFError` where the person leaves."""
        warn_line("Welcome. There are no settings yet; four questions, and Ctrl-C leaves everything as it is.")
        candidate, models, key = self._choose_answerer()
        model = self._choose_model(candidate, models) if candidate.provider != "offline" else ""
        profile = PROFILES[self._choose("How freely may it act?", [f"{name:<12} {told}" for name, told in PROFILES])][0]
        scope: Scope = "everywhere"
        if may_write_here:
            places = ["every folder without an agent.yaml (your own settings)", "this folder only (./agent.yaml)"]
            scope = "everywhere" if self._choose("For which folders?", places) == 0 else "here"
        choice = ModelChoice(provider=candidate.provider, model=model, base_url=candidate.base_url, profile=profile)
        return SetUp(choice=choice, scope=scope, key=key)

    def _choose_answerer(self) -> tuple[Candidate, tuple[str, ...], tuple[str, str] | None]:
        """Until one answers: a key that is refused, or an address that is silent, is said and asked again."""
        found = anyio.run(find_candidates, self.environ)
        rows = [f"{each.label:<12} {each.detail}" for each in found]
        while True:
            picked = self._choose("Who shall answer?", [*rows, "Another      a server of your own, by its address"])
            try:
                candidate = found[picked] if picked < len(found) else self._read_address()
                key = self._read_key(candidate) if candidate.readiness == "no_key" else None
                environ = {**self.environ, **({key[0]: key[1]} if key else {})}
                return candidate, self._check(candidate, environ), key
            except MetierError as error:
                warn_line(f"error: {error.message}" + (f"\nhint: {error.hint}" if error.hint else ""))

    def _check(self, candidate: Candidate, environ: Mapping[str, str]) -> tuple[str, ...]:
        if candidate.provider == "offline":
            return ()
        warn_line(f"Asking {candidate.label} …")
        models = candidate.models or anyio.run(check_candidate, candidate, environ)
        count = f"{len(models)} model{'' if len(models) == 1 else 's'}"
        warn_line(f"It answers{f'; it has {count}' if models else ''}.")
        return models

    def _read_address(self) -> Candidate:
        address = self.read_line("Its address, such as http://localhost:8080/v1: ").strip()
        check_base_url(address)
        if not address:
            raise UsageError("No address was given")
        return Candidate(provider="openai", label=address, readiness="server", detail="", base_url=address)

    def _read_key(self, candidate: Candidate) -> tuple[str, str]:
        variable = BUILT_IN[candidate.provider].keys[0]
        warn_line(f"Metier writes no key into a file. To keep it, put `export {variable}=…` into your shell's profile.")
        key = self.read_secret(f"The key for now ({variable}), not shown: ").strip()
        if not key:
            raise UsageError("No key was given", hint=f"Set {variable} and start `agent` again, or choose another")
        return variable, key

    def _choose_model(self, candidate: Candidate, models: tuple[str, ...]) -> str:
        proposed = propose_model(candidate, models)
        if len(models) == 1:
            return models[0]
        first = (proposed,) if proposed else ()
        shown = (*first, *(model for model in models if model != proposed))[:_MOST_SHOWN]
        if shown:
            more = f"; {len(models) - len(shown)} more can be typed" if len(models) > len(shown) else ""
            return self._choose_or_type(f"Which model? A number or a name{more}", shown, models)
        while not (name := self.read_line("Which model? Its name: ").strip()):
            warn_line("A name is needed")
        return name

    def _choose_or_type(self, question: str, shown: Sequence[str], known: Sequence[str]) -> str:
        self._list(question, shown)
        while True:
            word = self.read_line("[1]: ").strip() or "1"
            if word.isdecimal() and 1 <= int(word) <= len(shown):
                return shown[int(word) - 1]
            if not word.isdecimal() and (not known or word in known):
                return word
            warn_line("Type one of the numbers, or the name of a model that it has")

    def _choose(self, question: str, rows: Sequence[str]) -> int:
        """The index of one of the rows; Enter takes the first."""
        self._list(question, rows)
        while True:
            word = self.read_line("[1]: ").strip() or "1"
            if word.isdecimal() and 1 <= int(word) <= len(rows):
                return int(word) - 1
            warn_line(f"Type a number from 1 to {len(rows)}")

    def _list(self, question: str, rows: Sequence[str]) -> None:
        warn_line(f"\n{question}")
        for number, row in enumerate(rows, start=1):
            warn_line(f"  {number:>2}  {row}")


def keep_key(set_up: SetUp) -> SetUp:
    """Give a typed key to this process, where every secret is looked for; it is written nowhere."""
    if set_up.key is not None:
        os.environ[set_up.key[0]] = set_up.key[1]
    return replace(set_up, key=None)
