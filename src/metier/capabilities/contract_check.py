"""Is a skill's contract right, and can its `impl.py` keep it? Reads files; runs nothing."""

import ast
from pathlib import Path

from metier.capabilities.contract_reader import ContractReading, has_contract, read_contract
from metier.capabilities.sync_check import MAX_SOURCE_BYTES, SYNTAX, as_problem, check_file
from metier.definitions.problems import Problem
from metier.definitions.skills.scripts import find_impl
from metier.definitions.skills.skill import SkillDefinition
from metier.skills.package import SkillPackage

ENTRY = "execute"
_OWN = ("bundled", "workspace", "directory")


def is_own(package: SkillPackage) -> bool:
    """Written by the user who runs it, or bundled: held to every field of its contract."""
    return package.source in _OWN


def list_modules(skill: SkillDefinition) -> list[Path]:
    """`impl.py` and the modules beside it, which it may import."""
    return sorted(skill.folder.glob("*.py"))


def load_contract(package: SkillPackage) -> ContractReading:
    return read_contract(package.definition, strict=is_own(package))


def check_capability(skill: SkillDefinition, *, strict: bool) -> tuple[Problem, ...]:
    """Every problem of the contract and of the code behind it. Code that is there makes the contract binding."""
    impl = find_impl(skill)
    if impl is None and not has_contract(skill):
        return ()
    reading = read_contract(skill, strict=strict or impl is not None)
    problems = list(reading.problems)
    if impl is not None:
        problems += _check_entry(impl)
        is_sync = reading.contract is not None and reading.contract.sync_celery
        problems += [
            as_problem(finding, str(file))
            for file in list_modules(skill)
            for finding in check_file(file)
            if is_sync or finding.code == SYNTAX
        ]
    return tuple(problems)


def _check_entry(impl: Path) -> list[Problem]:
    """A syntax error is reported by the check of the code itself."""
    try:
        tree = ast.parse(impl.read_bytes()[:MAX_SOURCE_BYTES])
    except (OSError, SyntaxError, ValueError, RecursionError, MemoryError):
        return []
    if any(isinstance(node, ast.FunctionDef) and node.name == ENTRY for node in tree.body):
        return []
    hint = f"Write `def {ENTRY}(context):`, which answers with a mapping"
    message = f"'{impl.name}' has no function {ENTRY!r}"
    return [Problem(severity="error", code="impl_without_execute", message=message, file=str(impl), line=1, hint=hint)]
