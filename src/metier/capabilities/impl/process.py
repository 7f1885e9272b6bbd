"""One call of a skill's `execute`, in its own process."""

from collections.abc import Awaitable, Callable, Mapping
from pathlib import Path
from tempfile import TemporaryDirectory

from msgspec import Struct, field
from msgspec.structs import replace
from pydantic import JsonValue

from metier.capabilities.contract import SkillContract
from metier.capabilities.impl.context import MAX_ANSWER_BYTES
from metier.capabilities.impl.guard import resolve
from metier.capabilities.impl.saved_replies import SavedReply, get_saved_reply
from metier.errors import ToolFailed
from metier.skills.package import SkillPackage
from metier.tools.process.child_environment import build_environment
from metier.tools.process.json_lines import ChildModule, JsonLinesChild, Line
from metier.tools.process.sandbox.confinement import Confinement
from metier.tools.scripts.runner import IDEMPOTENCY_VARIABLE

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
    below = [resolve(scratch), *own]
    workspace = resolve(turn.workspace)
    if "writes_files" in kinds:
        below.append(resolve(turn.artifacts))
        if contract.autonomy_level in ("implement", "commit"):
            below.append(workspace)
    return {
        "network": "network" in kinds,
        "programs": "runs_programs" in kinds,
        "write_below": [*below],
        "workspace": workspace,
        "workspace_patterns": list(contract.side_effects.paths),
    }


def _read(reply: Line, turn: Turn) -> Reply:
    if code := reply.get("error"):
        message = str(reply.get("message") or f"Skill {turn.contract.skill!r} failed")
        raise ToolFailed(message, code=str(code))
    remembered = reply.get("remembered")
    return Reply(response=reply.get("response"), remembered=remembered if isinstance(remembered, dict) else {})
