"""Backtests replay past runs with a proposed change, and report where they would differ.

Each run is replayed twice. The exact replay stops at the first entry that would change. The tolerant replay continues
with recorded replies and results although the prompt changed, until the run would do something that was not recorded.
Nothing is sent and nothing is executed.
"""

from collections.abc import Sequence
from pathlib import Path

from msgspec import Struct, field

from metier.definitions.problems import has_errors
from metier.definitions.skills.skill import load_skill
from metier.engine.entries.entry import Entry
from metier.engine.entries.model import ModelCallStarted, ModelReplied
from metier.engine.entries.run import RunStarted
from metier.engine.entries.skill import SkillsRanked
from metier.engine.journal import read_entries
from metier.engine.replay.replay import replay
from metier.errors import ConfigError, MetierError, UsageError
from metier.providers.facts import FactBook, cost_usd, load_facts
from metier.providers.model_names import DEFAULT_MODELS, parse_model_name
from metier.runtime.history.replays import ReplayChanges, build_replay_services
from metier.runtime.present_policy import Change, backtest
from metier.runtime.runs import Runtime
from metier.skills.package import SkillPackage
from metier.store.base import RunRow

KINDS = ("skill", "prompt", "policy", "router.min_score", "router.top_k", "model")
_ROUTER = {"router.min_score": "prefilter_min_score", "router.top_k": "prefilter_top_k"}
_MAX_BYTES = 1_000_000


class ProposedChange(Struct, frozen=True, kw_only=True):
    """A change to try."""

    changes: ReplayChanges
    model: str = ""
    """`provider/model`, or a model of the run's provider."""


class RoutingChange(Struct, frozen=True, kw_only=True):
    before: tuple[str, ...]
    """The best candidates with their scores."""
    after: tuple[str, ...]


class BacktestedRun(Struct, frozen=True, kw_only=True):
    run_id: str
    task: str
    entries: int
    exact: int
    """Number of entries that are identical."""
    carried: int
    """Number of further entries that could use recorded replies and results."""
    first_difference: str = ""
    stops: str = ""
    """Reason why the replay stops here; empty if it reaches the end of the run."""
    turns_with_other_prompt: tuple[int, ...] = ()
    prompt_tokens: tuple[int, int] = (0, 0)
    """Estimates for all requests, before and after the change."""
    verdicts: tuple[Change, ...] = ()
    routing: RoutingChange | None = None
    cost_usd: tuple[float | None, float | None] = (None, None)
    """Costs before and after the change; None without a known price."""
    problem: str = ""
    """Reason why the run could not be replayed."""

    @property
    def differs(self) -> bool:
        costs_more = None not in self.cost_usd and self.cost_usd[0] != self.cost_usd[1]
        return bool(self.first_difference or self.verdicts or self.routing or costs_more)


class _ParsedChanges(Struct):
    packages: list[SkillPackage] = field(default_factory=list[SkillPackage])
    base: str | None = None
    policy: bytes | None = None
    router: dict[str, float] = field(default_factory=dict[str, float])
    model: str = ""


def parse_changes(words: Sequence[str], *, workspace: Path) -> ProposedChange:
    """Parse `skill=FOLDER`, `prompt=FILE`, `policy=FILE`, `router.min_score=N`, `router.top_k=N`, `model=NAME`.

    Raises `UsageError`, also for unusable files.
    """
    parsed = _ParsedChanges()
    for word in words:
        kind, equals, value = word.partition("=")
        if kind not in KINDS or not equals or not value:
            raise UsageError(f"Invalid change {word!r}", hint=f"Write KIND=VALUE with one of {', '.join(KINDS)}")
        _take(parsed, kind, value, workspace=workspace)
    changes = ReplayChanges(
        packages=tuple(parsed.packages), base=parsed.base, policy=parsed.policy, skills=parsed.router
    )
    return ProposedChange(changes=changes, model=parsed.model)


def _take(parsed: _ParsedChanges, kind: str, value: str, *, workspace: Path) -> None:
    match kind:
        case "skill":
            folder = (workspace / value).resolve()
            reading = load_skill(folder)
            if reading.skill is None or has_errors(reading.problems):
                told = reading.problems[0].render() if reading.problems else "It has no SKILL.md"
                raise UsageError(f"Skill in {value!r} cannot be loaded", hint=told)
            parsed.packages.append(SkillPackage(definition=reading.skill, folder=folder, source="directory"))
        case "prompt":
            parsed.base = _read(workspace / value).decode("utf-8", "replace").strip()
        case "policy":
            parsed.policy = _read(workspace / value)
        case "model":
            parsed.model = _read_model(value)
        case _:
            try:
                parsed.router[_ROUTER[kind]] = int(value) if kind == "router.top_k" else float(value)
            except ValueError as error:
                raise UsageError(f"{kind} must be a number, not {value!r}") from error


def _read(file: Path) -> bytes:
    try:
        with file.open("rb") as stream:
            return stream.read(_MAX_BYTES)
    except OSError as error:
        raise UsageError(f"'{file}' cannot be read: {error.strerror}") from error


async def list_past_runs(runtime: Runtime, wanted: str) -> list[RunRow]:
    """Return runs, newest first: `20` newest ones, `agent=ID`, `status=WORD` or an ID prefix, separated by commas.

    Raises `UsageError` for an unknown filter.
    """
    limit = 20
    rows: list[RunRow] = await runtime.store.list_runs(limit=1000)
    for word in filter(None, (part.strip() for part in wanted.split(","))):
        key, equals, value = word.partition("=")
        if word.isdigit() and len(word) < 8:
            limit = int(word)
        elif key == "agent" and equals:
            rows = [row for row in rows if row.agent == value]
        elif key == "status" and equals:
            rows = [row for row in rows if row.status == value]
        elif not equals:
            rows = [row for row in rows if row.run_id.startswith(word)]
        else:
            raise UsageError(f"Unknown filter {word!r}", hint="Use a number, agent=ID, status=WORD, or an ID")
    return rows[:limit]


async def backtest_run(runtime: Runtime, row: RunRow, proposed: ProposedChange) -> BacktestedRun:
    """Compute the effect of a change on one run. Raises `ConfigError` for unusable rules."""
    entries = await read_entries(runtime.store, row.run_id)
    blank = BacktestedRun(run_id=row.run_id, task=row.task, entries=len(entries), exact=0, carried=0)
    if not entries:
        return blank
    try:
        services = await build_replay_services(runtime.host, runtime.store, entries, changes=proposed.changes)
        exact = await replay(row.run_id, entries, services)
        carried = await replay(row.run_id, entries, services, rederive=True)
    except ConfigError:
        raise  # the change itself is invalid
    except MetierError as error:
        return BacktestedRun(
            run_id=row.run_id, task=row.task, entries=len(entries), exact=0, carried=0, problem=error.message
        )
    found = backtest(row.run_id, entries, lambda _agent, _profile: services.policy)
    # Behind this entry the replay has no recorded replies, so nothing there can be compared.
    after = carried.entries[: carried.compared]
    return BacktestedRun(
        run_id=row.run_id,
        task=row.task,
        entries=len(entries),
        exact=exact.compared,
        carried=carried.compared,
        first_difference=exact.divergence.sentence if exact.divergence is not None else "",
        stops=carried.divergence.sentence if carried.divergence is not None else "",
        turns_with_other_prompt=_list_turns(entries, after),
        prompt_tokens=(_count_tokens(entries[: len(after)]), _count_tokens(after)),
        verdicts=found.changes,
        routing=_find_routing(entries, after),
        cost_usd=_price(entries, proposed, load_facts()),
    )


def _list_turns(before: Sequence[Entry], after: Sequence[Entry]) -> tuple[int, ...]:
    pairs = zip(before, after, strict=False)
    return tuple(
        dict.fromkeys(
            one.turn
            for one, other in pairs
            if isinstance(one, ModelCallStarted)
            and isinstance(other, ModelCallStarted)
            and one.request_hash != other.request_hash
        )
    )


def _count_tokens(entries: Sequence[Entry]) -> int:
    return sum(entry.estimated_tokens for entry in entries if isinstance(entry, ModelCallStarted))


def _read_model(value: str) -> str:
    # 0.2 wrote `anthropic:claude-opus-5-5`. Names of local models have a colon too: `llama3:8b`.
    provider, _, model = value.partition(":")
    return f"{provider}/{model}" if provider in DEFAULT_MODELS else value


def _find_routing(before: Sequence[Entry], after: Sequence[Entry]) -> RoutingChange | None:
    for one, other in zip(before, after, strict=False):
        if isinstance(one, SkillsRanked) and isinstance(other, SkillsRanked) and one.candidates != other.candidates:
            return RoutingChange(before=_name(one), after=_name(other))
    return None


def _name(ranked: SkillsRanked) -> tuple[str, ...]:
    return tuple(f"{each.skill_name} {each.score:.0f}" for each in ranked.candidates[:3])


def _price(entries: Sequence[Entry], proposed: ProposedChange, facts: FactBook) -> tuple[float | None, float | None]:
    """Return the cost of the run's tokens at the prices of both models, as if both sent the same replies."""
    replies = [entry.reply for entry in entries if isinstance(entry, ModelReplied)]
    started = entries[0]
    if not proposed.model or not replies or not isinstance(started, RunStarted):
        return None, None
    before = [cost_usd(reply.usage, facts.get(started.provider, started.model)) for reply in replies]
    proposed_facts = facts.get(*parse_model_name(proposed.model, provider=started.provider))
    after = [cost_usd(reply.usage, proposed_facts) for reply in replies]
    return _add(before), _add(after)


def _add(costs: Sequence[float | None]) -> float | None:
    return None if None in costs else sum(cost for cost in costs if cost is not None)
