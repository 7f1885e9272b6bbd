"""Rules for the real paths of calls. Rules match names, and a link has another name than its target.

Links are resolved twice: before the call runs, so that a user can be asked, and by the tool when the file is open, so
that a link that changes in between has no effect.
"""

from collections.abc import Callable
from dataclasses import replace

from msgspec import Struct
from pydantic import JsonValue

from metier.approval.canonical import canonical_text
from metier.approval.judge import name_call
from metier.approval.rules import Verdict
from metier.engine.decide import judge_step
from metier.engine.services import Services
from metier.engine.state.run_state import RunState
from metier.engine.state.steps import Step, edit_arguments
from metier.errors import ToolFailed
from metier.tools.toolbox import Toolbox


class JudgedPaths(Struct, frozen=True, kw_only=True):
    """The rules' verdict for a step's resolved paths. A `tools.base.PathGuard`."""

    written: dict[str, JsonValue]
    """The arguments as the call names them."""
    root: str
    judge: Callable[[str, str], Verdict]
    """Returns the verdict for the same call with another value of an argument (name, value)."""
    is_approved: bool
    is_read_only: bool = False
    """True if the step runs in the read-only sandbox."""
    approved: frozenset[str]
    """Link targets that the user saw before approving."""

    def check(self, path: str, *, key: str = "path") -> None:
        if is_as_written(self.written.get(key), path, key=key, root=self.root):
            return
        verdict = self.judge(key, path)
        if verdict.decision == "deny":
            raise ToolFailed(f"It leads to {path!r}. {verdict.reason}", code="permission_denied")
        # A call that is only allowed in the read-only sandbox is not allowed outside of it.
        is_allowed = verdict.decision == "allow" and (self.is_read_only or not verdict.read_only)
        # An approval covers the files that the approver saw, and no others, even if rules allow them.
        if path in self.approved or (is_allowed and not self.is_approved):
            return
        raise ToolFailed(
            f"It leads to {path!r}, which was not approved", hint=f"Name that {key}", code="permission_denied"
        )

    def hides(self, path: str, *, key: str = "path") -> bool:
        return self.judge(key, path).decision == "deny"


def build_guard(step: Step, state: RunState, services: Services) -> JudgedPaths:
    _, arguments = name_call(step.action)

    def judge(key: str, text: str) -> Verdict:
        moved = edit_arguments(step.action, {**arguments, key: text})
        if denial := services.find_new_denial(moved):
            return Verdict(decision="deny", reason=denial)
        return judge_step(state, replace(step, action=moved), services.policy)

    return JudgedPaths(
        written=arguments,
        root=str(services.workspace),
        judge=judge,
        is_approved=step.asked is not None,
        is_read_only=step.started is not None and step.started.read_only,
        approved=frozenset(step.approved_targets),
    )


async def resolve_links(step: Step, services: Services) -> dict[str, str]:
    """Return the link targets in a step's paths, by argument."""
    return await resolve_call_links(*name_call(step.action), tools=services.tools, root=str(services.workspace))


async def resolve_call_links(
    name: str, arguments: dict[str, JsonValue], *, tools: Toolbox, root: str
) -> dict[str, str]:
    found = await tools.locate(name, arguments)
    return {key: path for key, path in found.items() if not is_as_written(arguments.get(key), path, key=key, root=root)}


async def get_question(step: Step, state: RunState, services: Services) -> str:
    """Return why a user must approve a call's link targets; empty if none must, or if the call is denied."""
    targets = await resolve_links(step, services)
    if step.phase == "approved" and step.asked is not None:
        is_same = set(targets.values()) <= set(step.approved_targets)
        return "" if is_same else f"It leads elsewhere now: {_list(targets)}"
    guard = build_guard(step, state, services)
    verdicts = [guard.judge(key, path) for key, path in targets.items()]
    if any(verdict.decision == "deny" for verdict in verdicts):
        return ""
    is_read_only = judge_step(state, step, services.policy).read_only if targets else False
    asking = next((each for each in verdicts if each.decision == "ask" or (each.read_only and not is_read_only)), None)
    return f"It leads to {_list(targets)}. {asking.reason}" if asking is not None else ""


def render_link_targets(targets: dict[str, str]) -> str:
    """Render the link targets for the approver, above the call's preview."""
    return "".join(f"The {key} leads to {path!r}\n" for key, path in targets.items())


def is_as_written(written: JsonValue, path: str, *, key: str, root: str) -> bool:
    """Return True if rules see both paths as the same. A missing argument means the workspace itself."""
    text = written if isinstance(written, str) and written else "."
    return canonical_text(text, key=key, root=root) == canonical_text(path, key=key, root=root)


def _list(targets: dict[str, str]) -> str:
    return ", ".join(repr(path) for path in targets.values())
