"""One call of a skill's `execute`, in its own process, and its reply on disk until the store has the response.

The process saves its reply itself, so that no effect is lost or repeated if the agent dies between the exit of the
process and the transaction. The file is in the artifacts, the only folder of a run that a sandboxed program may write
to. It contains a secret from a file next to the spool, where such a program may not write; a reply without the secret
is ignored. Replies are not redacted yet: only the owner may read them, and they are deleted once stored.
"""

import json
import secrets
from collections.abc import Awaitable, Callable, Mapping
from pathlib import Path
from tempfile import TemporaryDirectory

from msgspec import Struct, field
from msgspec.structs import replace
from pydantic import JsonValue

from metier.capabilities.contract import SkillContract
from metier.capabilities.impl.context import MAX_ANSWER_BYTES
from metier.capabilities.impl.guard import resolve
from metier.definitions.files.whole_file import replace_file
from metier.errors import ToolFailed
from metier.skills.package import SkillPackage
from metier.tools.process.child_environment import build_environment
from metier.tools.process.json_lines import ChildModule, JsonLinesChild, Line
from metier.tools.process.sandbox.confinement import Confinement
from metier.tools.scripts.runner import IDEMPOTENCY_VARIABLE


class SavedReply(Struct, frozen=True, kw_only=True):
    """The file for the reply to one call of `execute`."""

    file: Path
    secret: str
    """A reply must contain it."""

    def load(self) -> dict[str, JsonValue] | None:
        """Return the reply; None if there is none or it was forged."""
        try:
            value: JsonValue = json.loads(self.file.read_bytes())
        except (OSError, ValueError):
            return None
        is_ours = isinstance(value, dict) and value.get("secret") == self.secret
        reply = value.get("reply") if is_ours and isinstance(value, dict) else None
        return reply if isinstance(reply, dict) else None


def get_saved_reply(spool: Path, artifacts: Path, *, turn: int, call: int) -> SavedReply:
    """Return the file of one call. A turn has several calls if an answer violates the contract."""
    return SavedReply(file=artifacts / f"{_get_prefix(spool)}{turn}-{call}.json", secret=_get_secret(spool))


def has_saved_reply(spool: Path, artifacts: Path) -> bool:
    found = artifacts.glob(f"{_get_prefix(spool)}*.json")
    # Without the file, `_get_secret` would create a new secret, which no reply can have.
    return _get_secret_file(spool).exists() and any(
        SavedReply(file=file, secret=_get_secret(spool)).load() for file in found
    )


def delete_saved_replies(spool: Path | None, artifacts: Path | None) -> None:
    if spool is None or artifacts is None:
        return
    for file in (*artifacts.glob(f"{_get_prefix(spool)}*"), _get_secret_file(spool)):
        file.unlink(missing_ok=True)


def _get_prefix(spool: Path) -> str:
    return f".answer-{spool.name}-"


def _get_secret_file(spool: Path) -> Path:
    return spool.with_name(f"{spool.name}.answer")


def _get_secret(spool: Path) -> str:
    """Return the secret of this attempt, the same for every process that works on it."""
    file = _get_secret_file(spool)
    secret = file.read_text(encoding="ascii") if file.exists() else ""
    # An empty file would accept a forged reply without a secret.
    if not secret:
        secret = secrets.token_hex(16)
        # Durable, or a saved reply could not be recognized after a power cut.
        replace_file(file, secret.encode("ascii"), durable=True)
    return secret


type Advise = Callable[[str, JsonValue], Awaitable["Advice"]]


class Advice(Struct, frozen=True, kw_only=True):
    """The answer to a skill's question: a validated value, or the reason why its turn ends."""

    value: JsonValue = None
    refused: str = ""


class Turn(Struct, frozen=True, kw_only=True):
    """Input of one call of `execute`."""

    package: SkillPackage
    contract: SkillContract
    context_id: str
    number: int
    inputs: dict[str, JsonValue]
    workspace: Path
    artifacts: Path
    facts: dict[str, JsonValue] = field(default_factory=dict[str, JsonValue])
    delegated: JsonValue = None
    problems: tuple[str, ...] = ()
    idempotency_key: str = ""
    timeout_seconds: float | None = None
    """Remaining time of the caller."""
    spool: Path | None = None
    """File prefix that records start, end and reply of the process; None outside of runs."""
    confinement: Confinement = field(default_factory=Confinement)

    @property
    def saved_reply(self) -> SavedReply | None:
        if self.spool is None:
            return None
        return get_saved_reply(self.spool, self.artifacts, turn=self.number, call=len(self.problems))


class Reply(Struct, frozen=True, kw_only=True):
    response: JsonValue
    remembered: dict[str, JsonValue]


async def call_impl(turn: Turn, environ: Mapping[str, str], *, advise: Advise | None) -> Reply:
    """Call `execute`, or return the reply that it saved before the agent was killed.

    Raises `ToolFailed`: `timeout`, `undeclared_effect`, `advice_refused`, `impl_raised`, `execution_failed`.
    """
    if turn.saved_reply is not None and (reply := turn.saved_reply.load()) is not None:
        return _read(reply, turn)
    limit = turn.contract.timeout_seconds
    limit = limit if turn.timeout_seconds is None else min(limit, turn.timeout_seconds)

    async def respond(line: Line) -> Line | None:
        if line.get("kind") != "advise":
            return None
        asked = await advise(str(line["prompt"]), line["schema"]) if advise else Advice()
        return {"value": asked.value, "refused": asked.refused}

    with TemporaryDirectory(prefix="metier-impl-") as scratch:
        async with await JsonLinesChild.start(_build_child(turn, environ, scratch=scratch)) as child:
            request = _build_request(turn, scratch, has_advisor=advise is not None)
            return _read(await child.ask(request, timeout_seconds=limit, respond=respond, ends=True), turn)


def _build_child(turn: Turn, environ: Mapping[str, str], *, scratch: str) -> ChildModule:
    environment = build_environment(environ, turn.package.definition.permissions_env)
    # A private folder for temporary files, so that writing them needs no `writes_files`.
    environment |= {"TMPDIR": scratch, "TEMP": scratch, "TMP": scratch}
    if turn.idempotency_key:
        environment[IDEMPOTENCY_VARIABLE] = turn.idempotency_key
    return ChildModule(
        module="metier.capabilities.impl.worker",
        subject=f"Skill {turn.contract.skill!r}",
        folder=turn.workspace if turn.workspace.is_dir() else turn.package.folder,
        environment=environment,
        spool=turn.spool,
        confinement=_confine(turn, Path(scratch)),
        max_line_bytes=MAX_ANSWER_BYTES,
    )


def _confine(turn: Turn, scratch: Path) -> Confinement:
    """Return the run's sandbox, without network if the contract does not declare it."""
    confinement = turn.confinement.opened(turn.package.folder.resolve())
    return replace(
        confinement,
        writable=(*confinement.writable, scratch, turn.artifacts.resolve()),
        network=confinement.network and "network" in turn.contract.side_effects.kinds,
    )


def _build_request(turn: Turn, scratch: str, *, has_advisor: bool) -> dict[str, JsonValue]:
    saved = turn.saved_reply
    return {
        "folder": str(turn.package.folder.resolve()),
        "permitted": build_permitted(turn, scratch),
        "reply_file": resolve(saved.file) if saved is not None else "",
        "reply_secret": saved.secret if saved is not None else "",
        "context": {
            "skill": turn.contract.skill,
            "context_id": turn.context_id,
            "turn": turn.number,
            "inputs": turn.inputs,
            "facts": turn.facts,
            "delegated": turn.delegated,
            "problems": list(turn.problems),
            "workspace": str(turn.workspace),
            "artifacts": str(turn.artifacts),
            "idempotency_key": turn.idempotency_key,
            "can_advise": has_advisor,
            "execution_mode": turn.contract.execution_mode,
        },
    }


def build_permitted(turn: Turn, scratch: str) -> dict[str, JsonValue]:
    """Map the contract to paths: `suggest` writes artifacts of the run, `implement` and `commit` also the workspace."""
    contract = turn.contract
    kinds = contract.side_effects.kinds
    saved = turn.saved_reply
    # The guard also sees the write of the reply, because an audit hook cannot be removed.
    own = (resolve(saved.file), f"{resolve(saved.file)}.part") if saved is not None else ()
    writable = [resolve(scratch), *own]
    workspace = resolve(turn.workspace)
    if "writes_files" in kinds:
        writable.append(resolve(turn.artifacts))
        if contract.autonomy_level in ("implement", "commit"):
            writable.append(workspace)
    return {
        "network": "network" in kinds,
        "programs": "runs_programs" in kinds,
        "write_below": [*writable],
        "workspace": workspace,
        "workspace_patterns": list(contract.side_effects.paths),
    }


def _read(reply: Line, turn: Turn) -> Reply:
    if code := reply.get("error"):
        message = str(reply.get("message") or f"Skill {turn.contract.skill!r} failed")
        raise ToolFailed(message, code=str(code))
    remembered = reply.get("remembered")
    return Reply(response=reply.get("response"), remembered=remembered if isinstance(remembered, dict) else {})
