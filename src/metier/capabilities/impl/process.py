"""Run one turn of a skill in a process of its own: start it, talk to it, kill it with everything it started."""

import json
import sys
from collections.abc import Awaitable, Callable, Mapping
from pathlib import Path
from tempfile import TemporaryDirectory

import anyio
from anyio.streams.buffered import BufferedByteReceiveStream
from msgspec import Struct, field
from msgspec.structs import replace
from pydantic import JsonValue

from metier.capabilities.contract import SkillContract
from metier.capabilities.impl.context import MAX_ANSWER_BYTES
from metier.capabilities.impl.guard import resolve
from metier.capabilities.kept_answers import AnswerPlace, open_place
from metier.errors import MetierError, ToolFailed
from metier.skills.package import SkillPackage
from metier.tools.process.bounded_output import Capture
from metier.tools.process.child_environment import build_environment
from metier.tools.process.run import Command, ProcessLimits, ProcessTree
from metier.tools.process.sandbox.confinement import Confinement
from metier.tools.scripts.runner import IDEMPOTENCY_VARIABLE

_STDERR_BYTES = 4_000
_STDERR_SHOWN = 500

type Advise = Callable[[str, JsonValue], Awaitable["Advice"]]


class Advice(Struct, frozen=True, kw_only=True):
    """What the skill is told: a value that was checked, or why its turn ends."""

    value: JsonValue = None
    refused: str = ""


class Turn(Struct, frozen=True, kw_only=True):
    """Everything one call of `execute` needs."""

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
    """What is left of the caller's time."""
    spool: Path | None = None
    """Where it is noted that the process began and ended, and what it answered; nothing outside of runs."""
    confinement: Confinement = field(default_factory=Confinement)

    def open_answer_place(self) -> AnswerPlace | None:
        if self.spool is None:
            return None
        return open_place(self.spool, self.artifacts, turn=self.number, call=len(self.problems))


class Answered(Struct, frozen=True, kw_only=True):
    response: JsonValue
    remembered: dict[str, JsonValue]


async def call_impl(turn: Turn, environ: Mapping[str, str], *, advise: Advise | None) -> Answered:
    """Raises `ToolFailed`: `timeout`, `undeclared_effect`, `advice_refused`, `impl_raised`, `execution_failed`.

    A call that was answered before the agent was killed is not made again.
    """
    place = turn.open_answer_place()
    if place is not None and (kept := place.read()) is not None:
        return _read(kept, Capture(_STDERR_BYTES), turn)
    limit = turn.contract.timeout_seconds
    limit = limit if turn.timeout_seconds is None else min(limit, turn.timeout_seconds)
    with TemporaryDirectory(prefix="metier-impl-") as scratch:
        command = _build_command(turn, environ, scratch=scratch)
        tree = await ProcessTree.start(command, ProcessLimits(), with_stdin=True)
        errors = Capture(_STDERR_BYTES)
        async with tree:
            try:
                with anyio.fail_after(limit):
                    reply = await _converse(
                        tree, _build_request(turn, scratch, has_advisor=advise is not None), errors, advise=advise
                    )
            except TimeoutError as error:
                raise ToolFailed(
                    f"Skill {turn.contract.skill!r} did not answer within {limit:g}s", code="timeout"
                ) from error
    return _read(reply, errors, turn)


def _build_command(turn: Turn, environ: Mapping[str, str], *, scratch: str) -> Command:
    environment = build_environment(environ, turn.package.definition.permissions_env)
    # A folder of its own for temporary files: writing there needs no permission.
    environment |= {"TMPDIR": scratch, "TEMP": scratch, "TMP": scratch}
    if turn.idempotency_key:
        environment[IDEMPOTENCY_VARIABLE] = turn.idempotency_key
    return Command(
        # -B: bytecode beside the module would change the bytes that the user trusted.
        arguments=[sys.executable, "-I", "-B", "-X", "utf8", "-m", "metier.capabilities.impl.worker"],
        folder=turn.workspace if turn.workspace.is_dir() else turn.package.folder,
        environment=environment,
        spool=turn.spool,
        confinement=_confine(turn, Path(scratch)),
    )


def _confine(turn: Turn, scratch: Path) -> Confinement:
    """The sandbox of the run, less the network where the contract has none."""
    confinement = turn.confinement.opened(turn.package.folder.resolve())
    return replace(
        confinement,
        writable=(*confinement.writable, scratch, turn.artifacts.resolve()),
        network=confinement.network and "network" in turn.contract.side_effects.kinds,
    )


def _build_request(turn: Turn, scratch: str, *, has_advisor: bool) -> dict[str, JsonValue]:
    place = turn.open_answer_place()
    return {
        "folder": str(turn.package.folder.resolve()),
        "permitted": build_permitted(turn, scratch),
        "answer_file": resolve(place.file) if place is not None else "",
        "answer_secret": place.secret if place is not None else "",
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
    """The contract in terms of folders: `suggest` writes beside the run, `implement` and `commit` in the workspace."""
    contract = turn.contract
    kinds = contract.side_effects.kinds
    place = turn.open_answer_place()
    # The answer itself is written under the eyes of the guard too, which cannot be taken away again.
    own = (resolve(place.file), f"{resolve(place.file)}.part") if place is not None else ()
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


async def _converse(
    tree: ProcessTree, request: dict[str, JsonValue], errors: Capture, *, advise: Advise | None
) -> dict[str, JsonValue]:
    """Send the turn, answer questions, until the skill answers. Its log is read meanwhile, so that it never blocks."""
    lines = BufferedByteReceiveStream(tree.stdout)
    reply: dict[str, JsonValue] = {}
    failure: MetierError | None = None
    async with anyio.create_task_group() as readers:
        readers.start_soon(_keep, tree, errors)
        try:
            await _send(tree, request)
            while (reply := await _receive(lines)).get("kind") == "advise":
                asked = await advise(str(reply["prompt"]), reply["schema"]) if advise else Advice()
                await _send(tree, {"value": asked.value, "refused": asked.refused})
        except anyio.DelimiterNotFound:
            reply = {
                "error": "execution_failed",
                "message": f"The skill asked or answered with more than {MAX_ANSWER_BYTES} bytes",
            }
            await tree.stop()
            readers.cancel_scope.deadline = anyio.current_time() + 1
        except (anyio.IncompleteRead, anyio.BrokenResourceError, anyio.ClosedResourceError, anyio.EndOfStream):
            reply = {"error": "execution_failed", "message": "The process of the skill ended without an answer"}
            await tree.stop()
            readers.cancel_scope.deadline = anyio.current_time() + 1
        except MetierError as error:
            # Past the group, which would wrap it.
            failure = error
            readers.cancel_scope.cancel()
        else:
            # It has answered: its end is awaited, so that the note of the wrapper says so.
            with anyio.move_on_after(1):
                await tree.wait()
            readers.cancel_scope.cancel()
    if failure is not None:
        raise failure
    return reply


async def _send(tree: ProcessTree, value: dict[str, JsonValue]) -> None:
    await tree.stdin.send(json.dumps(value).encode() + b"\n")


async def _receive(lines: BufferedByteReceiveStream) -> dict[str, JsonValue]:
    line = await lines.receive_until(b"\n", MAX_ANSWER_BYTES)
    try:
        value: JsonValue = json.loads(line)
    except ValueError:
        value = None
    if not isinstance(value, dict):
        return {
            "error": "execution_failed",
            "message": "The process of the skill gave an answer that is no JSON object",
        }
    return value


async def _keep(tree: ProcessTree, errors: Capture) -> None:
    try:
        while True:
            errors.add(await tree.stderr.receive())
    except (anyio.EndOfStream, anyio.ClosedResourceError, anyio.BrokenResourceError):
        return


def _read(reply: dict[str, JsonValue], errors: Capture, turn: Turn) -> Answered:
    code = reply.get("error")
    if code:
        tail = errors.output().last(_STDERR_SHOWN).strip() if code == "execution_failed" else ""
        message = str(reply.get("message") or f"Skill {turn.contract.skill!r} failed")
        raise ToolFailed(f"{message}\nstderr: {tail}" if tail else message, code=str(code))
    remembered = reply.get("remembered")
    return Answered(response=reply.get("response"), remembered=remembered if isinstance(remembered, dict) else {})
