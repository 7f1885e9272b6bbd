"""Put together what one run needs: skills, tools, provider, policy, instructions. Decides nothing itself."""

from collections.abc import AsyncGenerator, Callable, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path

from metier.approval.profile import ProfilePolicy
from metier.context.base_prompt import BASE, SAFETY
from metier.definitions.problems import Problem
from metier.engine.services import Instructions, Services
from metier.engine.shelf import Shelf, build_shelf
from metier.providers.absent import AbsentProvider
from metier.providers.base import Observer, Provider
from metier.providers.facts import FactBook, load_facts
from metier.providers.failures import MissingKey
from metier.providers.offline import Places, build_offline
from metier.providers.options import ModelOptions
from metier.providers.registry import OFFLINE, choose_provider, open_provider
from metier.runtime.pins import use_pinned
from metier.runtime.place import Place
from metier.skills.activation import activate, build_roots, find_packages
from metier.skills.package import SkillPackage
from metier.store.base import Store
from metier.telemetry.redaction import find_secret_values
from metier.telemetry.sinks import Cleaner, build_cleaner
from metier.tools.base import Tool
from metier.tools.builtin import build_builtin_tools
from metier.tools.scope import Scope
from metier.tools.script_catalog import ScriptCatalog
from metier.tools.script_contract import ScriptLimits
from metier.tools.script_runner import ScriptRunner, default_environments
from metier.tools.scripts import build_script_tools
from metier.tools.toolbox import Toolbox
from metier.tools.toolset_loader import load_toolsets

BUNDLED = Path(__file__).resolve().parent.parent / "bundled"


def find_skills(place: Place) -> tuple[tuple[SkillPackage, ...], tuple[Problem, ...]]:
    """The active skills of this workspace, and what is wrong with the others."""
    directory = place.workspace / place.settings.skills.dir
    roots = build_roots(
        home=place.home,
        workspace=place.workspace,
        bundled=BUNDLED,
        directories=(directory,) if directory.is_dir() else (),
    )
    activation = activate(find_packages(roots), place.settings.skills.enabled)
    return activation.packages, activation.problems


def load_instructions(place: Place) -> Instructions:
    """The workspace's own words where it has them."""
    folder = place.workspace / "context"
    return Instructions(
        base=_read(folder / "system_prompt.md") or BASE,
        safety=SAFETY,
        soul=_read(folder / "soul.json"),
        profile=_read(folder / "user_profile.json"),
    )


def build_place_cleaner(place: Place) -> Cleaner:
    return build_cleaner(place.settings.logging, values=find_secret_values(place.environ))


def choose(place: Place, facts: FactBook, shelf: Shelf, *, run_folder: Path) -> Provider:
    """The provider of the settings; one that has no key is there and cannot be asked. Raises `UsageError`."""
    if place.provider is not None:
        return place.provider
    if place.settings.model.provider == "offline":
        places = Places(
            workspace=str(place.workspace),
            artifacts=str(run_folder / "artifacts"),
            previous=str(run_folder / "results.json"),
        )
        packages = tuple(shelf.packages.values())
        return build_offline(packages, _rank(shelf), places=places, max_turns=place.settings.runtime.max_turns)
    choice = choose_provider(place.settings.model)
    try:
        return open_provider(choice, facts, environment=place.environ)
    except MissingKey as missing:
        return AbsentProvider(choice.name, missing)


@asynccontextmanager
async def build_services(
    place: Place, store: Store, *, run_folder: Path, pins: Mapping[str, str], observe: Observer | None = None
) -> AsyncGenerator[Services]:
    """Everything a run needs, for as long as it is driven; processes of toolsets end with the block."""
    settings = place.settings
    found, problems = find_skills(place)
    packages, changed = await use_pinned(found, pins, store)
    async with AsyncExitStack() as opened:
        toolsets = await load_toolsets(packages, place.environ)
        opened.push_async_callback(toolsets.aclose)
        shelf = build_shelf(packages, workspace=place.workspace, problems=(*problems, *toolsets.problems))
        facts = load_facts(_facts_file(place))
        provider = choose(place, facts, shelf, run_folder=run_folder)
        opened.push_async_callback(provider.close)
        tools = Toolbox((*_file_tools(place), *_script_tools(packages, place), *toolsets.tools, *place.tools))
        yield Services(
            store=store,
            provider=provider,
            facts=facts,
            policy=ProfilePolicy(settings.runtime.profile, tools),
            tools=tools,
            shelf=shelf,
            instructions=load_instructions(place),
            model=_model_options(place, provider),
            runtime=settings.runtime,
            skills=settings.skills,
            clock=place.clock,
            ids=place.ids,
            workspace=place.workspace,
            run_folder=run_folder,
            clean=build_place_cleaner(place).text,
            changed=changed,
            owner=place.owner,
            observe=observe,
            seams=place.seams,
        )


def _file_tools(place: Place) -> tuple[Tool, ...]:
    """Open is the workspace; what decides about the agent is closed to writing, but in the permissive profile."""
    settings = place.settings
    runs = _inside(place.runs, place.workspace)
    skills = _inside(place.workspace / settings.skills.dir, place.workspace)
    protect = settings.runtime.profile != "permissive"
    scope = Scope((place.workspace,), protect=protect, own_folders=(*runs, *skills))
    return build_builtin_tools(scope, environ=place.environ, skip=runs)


def _inside(folder: Path, workspace: Path) -> tuple[str, ...]:
    """Relative to the workspace, nothing when it lies elsewhere or is the workspace itself."""
    if folder == workspace or not folder.is_relative_to(workspace):
        return ()
    return (folder.relative_to(workspace).as_posix(),)


def _script_tools(packages: Sequence[SkillPackage], place: Place) -> tuple[Tool, ...]:
    if not packages:
        return ()
    limits = ScriptLimits(
        timeout_seconds=place.settings.skills.script_timeout_seconds,
        max_output_bytes=place.settings.skills.max_script_output_bytes,
    )
    runner = ScriptRunner(environments=default_environments(place.environ), environ=place.environ)
    return build_script_tools(ScriptCatalog(packages), runner, limits)


def _model_options(place: Place, provider: Provider) -> ModelOptions:
    """The backbone calls tools; it cannot be asked for JSON instead."""
    options = place.settings.model
    return options.model_copy(update={"structured_output_mode": "native"}) if provider.name == OFFLINE else options


def _facts_file(place: Place) -> Path | None:
    named = place.settings.model.facts_file
    return place.workspace / named if named else None


def _rank(shelf: Shelf) -> Callable[[str], list[tuple[str, float]]]:
    def rank(request: str) -> list[tuple[str, float]]:
        return [(hit.skill_name, hit.score) for hit in shelf.index.rank(request, 8)]

    return rank


def _read(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8").strip()
    except FileNotFoundError:
        return ""
