"""Files of a skill that changed while a run waited: the run goes on with the new ones when a person says so, or stops.

The bytes of a `SKILL.md` are kept with the run; of scripts, `impl.py` and other files only the hash of the tree is. So
there is no going on with the old ones, and the new ones are not used without asking.
"""

from collections.abc import Awaitable, Callable, Mapping

from anyio.to_thread import run_sync

from metier.dataclass import dataclass
from metier.engine import entries as e
from metier.engine.journal import RunLog
from metier.runtime.questions.answers import Answer
from metier.runtime.records.pins import CODE, digest_code
from metier.runtime.workspace.prepared_run import PreparedRun

ACCEPT = "--accept-changed-skills"


@dataclass(frozen=True, slots=True, kw_only=True)
class ChangedCode:
    """Skills whose files are not those that a run began with."""

    run_id: str
    code: Mapping[str, str]
    """Pin → hash of the tree that is there now."""

    @property
    def sentence(self) -> str:
        names = ", ".join(repr(name.removeprefix(CODE)) for name in self.code)
        return f"The files of {'skill' if len(self.code) == 1 else 'skills'} {names} changed since the run began"


type CodeAsker = Callable[[ChangedCode], Awaitable[str | None]]
"""Who accepts that the run goes on with the new files; nothing without an acceptance."""


async def settle_code(
    log: RunLog, run: PreparedRun, answer: Answer, *, ask: CodeAsker | None, above: Mapping[str, str]
) -> dict[str, str] | None:
    """The code that the run goes on with; nothing where it is parked, because the change was not accepted.

    `above` is the code that the run above goes on with: what was accepted there is not asked about again.
    """
    started = log.state.started
    if run.is_dry or run.is_foreign or started is None:
        return dict(above)
    pins = started.pins
    # What came with Metier changes with its version, like Metier itself.
    own = [package for package in run.agent.packages if package.source != "bundled"]
    now = await run_sync(digest_code, own, pins)
    changed = {name: tree for name, tree in now.items() if name in pins and pins[name] != tree}
    if not changed:
        return {**above, **now}
    by = "the run above" if all(above.get(name) == tree for name, tree in changed.items()) else ""
    if not by:
        by = await _find_accepter(ChangedCode(run_id=log.state.run_id, code=changed), answer, ask)
    if by is None:
        await _park(log, ChangedCode(run_id=log.state.run_id, code=changed))
        return None
    await log.record(e.SkillCodeAccepted(code=changed, accepted_by=by), durable=True)
    return {**above, **now}


async def _find_accepter(changed: ChangedCode, answer: Answer, ask: CodeAsker | None) -> str | None:
    if answer.accepts_changed_skills:
        return answer.by
    return await ask(changed) if ask is not None else None


async def _park(log: RunLog, changed: ChangedCode) -> None:
    """It waits for this now; what it waited for before is found again when it goes on."""
    pause = log.state.pause
    if pause is None or (pause.pause, pause.reason) != ("changed_code", changed.sentence):
        await log.record(e.RunPaused(pause="changed_code", reason=changed.sentence), durable=True)
