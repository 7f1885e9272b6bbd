"""What a reviewer would say of a skill after reading it. Looks at files; executes nothing."""

import re
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import unquote

from metier.context.disclosure import DisclosureLimits, SkillText, disclose_overview, render_catalog
from metier.context.tokens import estimate_tokens
from metier.definitions.problems import Problem, Severity, has_errors
from metier.definitions.skills.scripts import discover_scripts
from metier.definitions.skills.skill import SkillDefinition, load_skill
from metier.errors import SkillError, ToolFailed
from metier.lazy_regex import lazy_regex
from metier.skills.capabilities_report import build_report
from metier.skills.files import list_files
from metier.skills.options import SkillsOptions
from metier.skills.trust.digest import digest_tree
from metier.tools.scripts.metadata import read_script

MAX_BODY_LINES = 500
MAX_BODY_TOKENS = 5_000
"""What the specification recommends; more belongs into references."""
SHORT_DESCRIPTION = 40
_WHEN = lazy_regex(r"\b(use|used|when|whenever|if|for|before|after|asks?|trigger\w*|needs?)\b", re.IGNORECASE)
_PERSON = lazy_regex(r"^\s*(I|You|We)\b")
_LINK = lazy_regex(r"\[[^\]\n]*\]\(<?([^)\s>]+)>?(?:\s+\"[^\"]*\")?\)")
_MENTION = lazy_regex(r"`(?:\./)?((?:references|assets|scripts|templates)/[^`\s<>*{}\[\]$]+)")
_ADDRESS = lazy_regex(r"^(?:[a-zA-Z][a-zA-Z0-9+.-]*:|#|/|\$|\{)")
_FENCE = lazy_regex(r"^\s*(```|~~~)")
_METADATA = lazy_regex(rb"^# /// script\s*$", re.MULTILINE)


def review_skill(skill: SkillDefinition) -> list[Problem]:
    """Everything worth a remark, errors first."""
    found = [
        *_review_form(skill),
        *_review_description(skill),
        *_review_body(skill),
        *_review_mentions(skill),
        *_review_scripts(skill),
        *_review_bytes(skill),
    ]
    return sorted(found, key=lambda problem: problem.severity != "error")


def count_tokens(skill: SkillDefinition, options: SkillsOptions) -> dict[str, int]:
    """What the skill costs in a prompt: always, once it is in charge, and its whole body."""
    text = SkillText(
        name=skill.name,
        description=skill.description,
        body=skill.body,
        folder=skill.folder.name,
        files=tuple(file.path for file in list_files(skill.folder)),
        scripts=tuple(script.name for script in discover_scripts(skill)),
    )
    overview = disclose_overview(text, DisclosureLimits(inline_body_tokens=options.inline_body_tokens))
    return {
        "catalog": estimate_tokens(render_catalog([(skill.name, skill.description)], [])),
        "overview": sum(file.tokens for file in overview.files),
        "body": estimate_tokens(skill.body),
    }


def _review_form(skill: SkillDefinition) -> Iterator[Problem]:
    yield from load_skill(skill.folder, id=skill.id).problems
    strict = load_skill(skill.folder, strict=True, id=skill.id).problems
    if has_errors(strict):
        reason = next(problem for problem in strict if problem.severity == "error")
        message = f"Tools that follow the specification to the letter may refuse it: {reason.message}"
        hint = "`agent skills validate --strict` lists all deviations"
        yield _remark(skill, "not_strict", message, line=reason.line, hint=hint)


def _review_description(skill: SkillDefinition) -> Iterator[Problem]:
    text = " ".join(skill.description.split())
    if len(text) < SHORT_DESCRIPTION:
        hint = "Say what it does and when it is to be used; a model chooses by this text alone"
        yield _remark(skill, "description_short", f"The description has {len(text)} characters only", hint=hint)
    elif text.isascii() and not _WHEN.search(text):
        hint = "Add a sentence like: Use it when a task asks for …"
        yield _remark(skill, "description_when", "The description does not say when to use the skill", hint=hint)
    if _PERSON.match(text):
        hint = "Write what it does: Extracts text from …"
        yield _remark(skill, "description_person", "The description addresses a person", hint=hint)
    if not skill.license:
        hint = "Without one others may not use it: add 'license: Apache-2.0' or the license you want"
        yield _remark(skill, "no_license", "The skill names no license", hint=hint)


def _review_body(skill: SkillDefinition) -> Iterator[Problem]:
    lines, tokens = skill.body.count("\n"), estimate_tokens(skill.body)
    if not skill.body.strip():
        yield _remark(skill, "body_empty", "The skill has no instructions", hint="Say how the work is done, in steps")
    if lines > MAX_BODY_LINES or tokens > MAX_BODY_TOKENS:
        message = f"The body has {lines} lines, about {tokens} tokens"
        hint = f"Keep it below {MAX_BODY_LINES} lines and {MAX_BODY_TOKENS} tokens; move detail into references/"
        yield _remark(skill, "body_long", message, hint=hint)


def _review_mentions(skill: SkillDefinition) -> Iterator[Problem]:
    named: set[str] = set()
    for number, line in _prose(skill):
        links = {_local_path(target) for target in _LINK.findall(line) if not _ADDRESS.match(target)}
        mentions = {mention.rstrip(".,;:)").partition("#")[0] for mention in _MENTION.findall(line)}
        named |= links | mentions
        for path in sorted(links):
            if path and not _is_inside(skill.folder, path):
                yield _remark(
                    skill, "link_broken", f"The link to {path!r} leads nowhere", severity="error", line=number
                )
        for path in sorted(mentions - links):
            if not _is_inside(skill.folder, path):
                yield _remark(skill, "file_missing", f"The text names {path!r}, which is not there", line=number)
    for file in list_files(skill.folder):
        if file.path.startswith("references/") and file.path not in named and file.path not in skill.body:
            message = f"Nothing in the body leads to {file.path!r}"
            yield _remark(skill, "file_unnamed", message, hint="Name it and say when to read it, or remove it")


def _review_scripts(skill: SkillDefinition) -> Iterator[Problem]:
    for script in discover_scripts(skill):
        try:
            text = read_script(script.path)
        except ToolFailed:
            continue  # the trial says what is wrong with it
        if not _METADATA.search(text.replace(b"\r\n", b"\n")):
            hint = "Start it with '# /// script', so that it runs the same everywhere"
            name = f"scripts/{script.path.name}"
            yield _remark(skill, "script_metadata", f"{name!r} does not say what it needs (PEP 723)", hint=hint)


def _review_bytes(skill: SkillDefinition) -> Iterator[Problem]:
    try:
        report = build_report(skill, digest_tree(skill.folder))
    except SkillError as error:
        hint = error.hint or "It could not be installed like this"
        yield _remark(skill, "not_plain", error.message, severity="error", hint=hint)
        return
    for place in report.hidden_characters:
        hint = "Remove it: a person does not see it, a model reads it"
        yield _remark(skill, "hidden_character", f"Hidden character in {place}", severity="error", hint=hint)
    for name in report.large_file_pointers:
        hint = "Commit the file itself; pointers are not followed"
        yield _remark(skill, "large_file_pointer", f"{name!r} is a Git LFS pointer", hint=hint)
    for name in report.binaries:
        hint = "It cannot be reviewed: ship the source"
        yield _remark(skill, "machine_code", f"{name!r} is machine code", hint=hint)


def _prose(skill: SkillDefinition) -> Iterator[tuple[int, str]]:
    """Lines outside of code blocks with their number in the file."""
    inside = False
    for number, line in enumerate(skill.body.split("\n"), start=skill.body_line):
        if _FENCE.match(line):
            inside = not inside
        elif not inside:
            yield number, line


def _local_path(target: str) -> str:
    return unquote(target.partition("#")[0].partition("?")[0]).removeprefix("./")


def _is_inside(folder: Path, path: str) -> bool:
    try:
        target = (folder / path).resolve()
        return target.is_relative_to(folder.resolve()) and target.exists()
    except (OSError, ValueError):
        return False


def _remark(
    skill: SkillDefinition,
    code: str,
    message: str,
    *,
    severity: Severity = "warning",
    line: int | None = None,
    hint: str = "",
) -> Problem:
    return Problem(severity=severity, code=code, message=message, file=str(skill.file), line=line, hint=hint)
