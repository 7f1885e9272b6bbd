"""The skills of a run that can be called, as its tools. Puts together; decides nothing itself."""

from collections.abc import Sequence

from metier.capabilities.adapter import name_owner
from metier.capabilities.advisor import Bill, ProviderAdvisor
from metier.capabilities.delegation import Lineage
from metier.capabilities.executor import Capability, SkillExecutor
from metier.capabilities.tool import build_capability_tools
from metier.capabilities.turns import Conversations
from metier.definitions.names import canonical_name
from metier.definitions.skills.scripts import is_capability
from metier.providers.absent import AbsentProvider
from metier.providers.base import Provider
from metier.providers.facts import FactBook
from metier.providers.options import OFFLINE
from metier.runtime.cleaning import build_place_redactor
from metier.runtime.delegation.skill_runs import AwaitedRuns
from metier.runtime.host import Host
from metier.runtime.workspace.catalog import open_needs
from metier.runtime.workspace.prepared_run import PreparedRun
from metier.skills.package import SkillPackage
from metier.store.base import Store
from metier.store.tokens import load_resume_keys
from metier.tools.base import Tool
from metier.tools.process.sandbox.confinement import Confinement


def list_callable(
    packages: Sequence[SkillPackage],
    place: Host,
    store: Store,
    *,
    run: PreparedRun,
    advisor: ProviderAdvisor | None,
    confinement: Confinement,
) -> tuple[Tool, ...]:
    """One tool for each active skill with an `impl.py` whose contract can be used. Runs nothing."""
    call = run.order.call if run.order is not None else None
    executor = SkillExecutor(
        packages={canonical_name(package.definition.name): package for package in packages},
        workspace=place.root,
        artifacts=run.folder / "artifacts",
        is_one_place=True,
        environ=place.environ,
        advisor=advisor,
        confinement=confinement,
        needs=open_needs(place),
    )
    conversations = Conversations(
        executor=executor,
        contexts=store.contexts,
        redactor=build_place_redactor(place),
        keys=load_resume_keys(place.runs, place.environ, home=place.home),
        owner=name_owner(),
        clock=place.clock,
        router=AwaitedRuns(store),
    )
    lineage = Lineage(call.chain, call.ceiling) if call is not None else Lineage()
    callable_skills = _find_callable(executor, ordered=call.skill if call is not None else "")
    return build_capability_tools(
        callable_skills, conversations, lineage=lineage, bill=advisor.bill if advisor else None
    )


def _find_callable(executor: SkillExecutor, *, ordered: str) -> list[Capability]:
    """A skill whose contract has errors stays readable; what is wrong with it is told where skills are checked.

    The one that another skill has ordered may also have an `entrypoint` instead of an `impl.py`.
    """
    names = [
        name for name, package in executor.packages.items() if is_capability(package.definition) or name == ordered
    ]
    return [one for name in names if isinstance(one := executor.find(name), Capability)]


def find_advisor(place: Host, provider: Provider, facts: FactBook) -> ProviderAdvisor | None:
    """The model of the run; None where there is none."""
    if provider.name == OFFLINE or isinstance(provider, AbsentProvider):
        return None
    model = place.settings.model
    return ProviderAdvisor(
        provider=provider,
        model=model.name,
        max_tokens=model.max_tokens,
        timeout_seconds=model.timeout_seconds,
        bill=Bill(facts),
    )
