"""Progressive disclosure of skills to the model, with exact sizes. Pure: files are read by the caller's `read`.

Stage 0 is the catalog of names and descriptions. Stage 1 is the overview of the active skill: its body if it is small,
or else its summary and outline. Stage 2 has the requested files and sections. Stage 3 lists the scripts. The code of a
skill is never shown.
"""

import re
from bisect import bisect_right
from collections.abc import Callable, Iterable
from typing import Literal

from msgspec import Struct

from metier.context.layers import Disclosed
from metier.context.outside_text import SKILL_CONTENT, escape_marks, fence
from metier.context.tokens import estimate_tokens
from metier.definitions.nearest import list_nearest
from metier.definitions.text.headings import find_section, first_paragraph, parse_sections, walk_sections
from metier.errors import SkillError
from metier.events.skill import DisclosedFile

SKILL_FILE = "SKILL.md"
CODE_FOLDERS = ("scripts/", "toolsets/")
CODE_FILES = ("impl.py",)
OUTLINE_LINES = 40
MIN_TOKENS = 100
"""Minimum size of an excerpt, because a smaller part of a file is useless."""
# The spellings of other agents, so that their skills work unchanged.
_PLACEHOLDERS = re.compile(r"\{baseDir\}|\$\{?(?:SKILL_DIR|SKILL_ROOT|CLAUDE_SKILL_DIR|CLAUDE_SKILL_ROOT)\}?")

type Read = Callable[[str], bytes]
"""Reads a file of the skill by its relative path. Raises `SkillError`."""


class DisclosureLimits(Struct, frozen=True, kw_only=True):
    max_reference_bytes: int = 120_000
    max_reference_tokens: int = 4_000
    inline_body_tokens: int = 1_500


class SkillText(Struct, frozen=True, kw_only=True):
    """The text of a skill, and the names of its files."""

    name: str
    description: str
    body: str
    folder: str
    """Path of the skill's folder, as the model should write it in commands."""
    files: tuple[str, ...] = ()
    """Relative paths of all files."""
    scripts: tuple[str, ...] = ()
    is_trusted: bool = True


class Disclosure(Struct, frozen=True, kw_only=True):
    """One stage of one skill: the pieces, their sizes, and rejected requests with the reason."""

    pieces: tuple[Disclosed, ...]
    files: tuple[DisclosedFile, ...]
    refused: tuple[str, ...] = ()


class _Excerpt(Struct, frozen=True):
    """Content of a file without a label."""

    path: str
    section: str
    text: str
    note: str = ""
    """A note of Metier after the content."""
    is_truncated: bool = False


def disclose_overview(skill: SkillText, limits: DisclosureLimits) -> Disclosure:
    """Disclose stage 1: the whole body if it is small, or else its first paragraph and outline."""
    body = make_usable(skill.body, skill.folder).strip()
    if estimate_tokens(body) <= limits.inline_body_tokens:
        text, section = body, ""
    else:
        text, section = render_outline(body), "outline"
    return _disclose(skill, 1, [_Excerpt(SKILL_FILE, section, text, note=_describe_files(skill))])


def disclose_files(
    skill: SkillText, paths: Iterable[str], *, read: Read, limits: DisclosureLimits, shown: frozenset[str] = frozenset()
) -> Disclosure:
    """Disclose stage 2: files (`references/x.md`) and sections (`SKILL.md#Heading`), within the limits.

    Paths in `shown` are already in the prompt and not repeated.
    """
    found: list[_Excerpt] = []
    refused: list[str] = []
    bytes_left, tokens_left = limits.max_reference_bytes, limits.max_reference_tokens
    for requested in dict.fromkeys(paths):
        outcome = _get_text(skill, requested, read=read, shown=shown)
        if isinstance(outcome, _Refused):
            refused.append(f"{requested}: {outcome.reason}")
            continue
        # Escape before measuring, because escaping makes the text longer.
        whole = escape_marks(make_usable(outcome, skill.folder))
        text, is_truncated = _truncate(whole, bytes_left, tokens_left)
        if is_truncated and (not text or tokens_left < MIN_TOKENS):
            refused.append(f"{requested}: no room left, {limits.max_reference_tokens} tokens is the most at once")
            continue
        bytes_left -= _count_bytes(text)
        tokens_left -= estimate_tokens(text)
        path, _, section = requested.partition("#")
        found.append(_Excerpt(path, section, text, is_truncated=is_truncated))
    disclosure = _disclose(skill, 2, found)
    return Disclosure(pieces=disclosure.pieces, files=disclosure.files, refused=tuple(refused))


def disclose_scripts(skill: SkillText) -> Disclosure:
    """Disclose stage 3: the scripts and their constraints."""
    if not skill.scripts:
        return Disclosure(pieces=(), files=())
    names = ", ".join(script.removesuffix(".py") for script in skill.scripts)
    trust = "" if skill.is_trusted else " The skill is not trusted: they will be refused."
    text = f"Scripts: {names}. Ask script_help before script_run; no shell, no input, limited time and output.{trust}"
    return _disclose(skill, 3, [_Excerpt("scripts/", "", text)])


def render_catalog(candidates: Iterable[tuple[str, str]], others: Iterable[str], *, max_other_tokens: int = 500) -> str:
    """Render stage 0: candidates with their descriptions, then as many other names as fit the limit."""
    lines = [f"- {name}: {' '.join(description.split())}" for name, description in candidates]
    names: list[str] = []
    left = max_other_tokens
    rest = list(others)
    for name in rest:
        left -= estimate_tokens(name) + 1
        if left < 0:
            break
        names.append(name)
    if names:
        more = f" and {len(rest) - len(names)} more (skill_search finds them)" if len(names) < len(rest) else ""
        lines.append(f"Others: {', '.join(names)}{more}")
    return "\n".join(lines)


def render_outline(body: str) -> str:
    """Render the first paragraph and the tree of headings with their token counts."""
    lines = [first_paragraph(body), "", f"Sections (read with `{SKILL_FILE}#Heading`):"]
    sections = list(walk_sections(parse_sections(body)))
    for section in sections[:OUTLINE_LINES]:
        tokens = estimate_tokens(body[section.start : section.end])
        lines.append(f"{'  ' * (section.level - 1)}- {section.text} ({tokens} tokens)")
    if len(sections) > OUTLINE_LINES:
        lines.append(f"- … {len(sections) - OUTLINE_LINES} more")
    return "\n".join(lines)


def make_usable(text: str, folder: str) -> str:
    """Replace placeholders for the skill's folder with its path."""
    return _PLACEHOLDERS.sub(lambda _: folder, text)


def wrap(skill: SkillText, *, path: str, section: str, text: str) -> str:
    """Label skill content, so that the model can distinguish it from instructions."""
    location = f"{path}#{section}" if section and section != "outline" else path
    trust = "" if skill.is_trusted else ' trusted="no"'
    attributes = f'skill="{_attribute(skill.name)}" path="{_attribute(location)}"{trust}'
    return fence(text, tag=SKILL_CONTENT, attributes=attributes)


class _Refused(Struct, frozen=True):
    reason: str


def _get_text(skill: SkillText, requested: str, *, read: Read, shown: frozenset[str]) -> str | _Refused:
    path, _, heading = requested.partition("#")
    path = path.removeprefix("./")
    if requested in shown:
        return _Refused("it is in front of you already")
    if path.startswith(CODE_FOLDERS) or path in CODE_FILES:
        return _Refused("code is run, not read; script_help explains it")
    if path != SKILL_FILE and path not in skill.files:
        return _Refused(f"no such file{_suggest(path, skill.files)}")
    text = skill.body if path == SKILL_FILE else _decode(path, read)
    if isinstance(text, _Refused) or not heading:
        return text
    sections = parse_sections(text)
    section = find_section(sections, heading)
    if section is None:
        return _Refused(f"no such heading{_suggest(heading, [s.text for s in walk_sections(sections)])}")
    return text[section.start : section.end].strip()


def _decode(path: str, read: Read) -> str | _Refused:
    try:
        data = read(path)
    except SkillError as error:
        return _Refused(error.message)
    # Like git, treat a file with a NUL byte near its start as binary.
    if b"\0" in data[:8192]:
        return _Refused("it is not text")
    return data.decode("utf-8", "replace")


def _suggest(name: str, known: Iterable[str]) -> str:
    near = list_nearest(name, list(known), at_least=0.55)
    return f"; the nearest are {', '.join(near)}" if near else ""


def _truncate(text: str, max_bytes: int, max_tokens: int) -> tuple[str, bool]:
    """Return the text, or as many of its lines as fit, followed by a line that reports the omitted ones."""
    if _fits(text, max_bytes, max_tokens):
        return text, False
    lines = text.splitlines()

    def keep(count: int) -> str:
        left_out = f"[… {len(lines) - count} of {len(lines)} lines left out; ask for a section …]"
        return "\n".join([*lines[:count], left_out])

    # Bisection, because estimating the tokens of a long file once per line would take quadratic time.
    count = _bisect(len(lines), lambda count: _fits(keep(count), max_bytes, max_tokens))
    if count:
        return keep(count), True
    # The first line alone exceeds the limit: return its start.
    first, mark = lines[0], keep(0)
    length = _bisect(len(first), lambda length: _fits(f"{first[:length]}\n{mark}", max_bytes, max_tokens))
    return (f"{first[:length]}\n{mark}" if length else ""), True


def _fits(text: str, max_bytes: int, max_tokens: int) -> bool:
    return _count_bytes(text) <= max_bytes and estimate_tokens(text) <= max_tokens


def _count_bytes(text: str) -> int:
    return len(text.encode("utf-8", "surrogatepass"))


def _bisect(limit: int, fits: Callable[[int], bool]) -> int:
    """Find the greatest number up to `limit` that fits, by bisection. Return 0 if none does."""
    return bisect_right(range(1, limit + 1), x=False, key=lambda number: not fits(number))


def _disclose(skill: SkillText, stage: Literal[1, 2, 3], found: Iterable[_Excerpt]) -> Disclosure:
    """Label each excerpt. Recorded sizes are those of the content, without label and note."""
    pieces: list[Disclosed] = []
    files: list[DisclosedFile] = []
    for each in found:
        text = f"{each.text}\n\n{each.note}".strip() if each.note else each.text
        wrapped = wrap(skill, path=each.path, section=each.section, text=text)
        location = f"{each.path}#{each.section}" if each.section else each.path
        pieces.append(Disclosed(skill=skill.name, path=location, stage=stage, text=wrapped))
        files.append(
            DisclosedFile(
                path=each.path,
                section=each.section,
                bytes=_count_bytes(each.text),
                tokens=estimate_tokens(each.text),
                truncated=each.is_truncated or each.section == "outline",
            )
        )
    return Disclosure(pieces=tuple(pieces), files=tuple(files))


def _describe_files(skill: SkillText) -> str:
    """List the files that the model can read. Scripts are in stage 3."""
    readable = [file for file in skill.files if file != SKILL_FILE and not file.startswith(CODE_FOLDERS)]
    readable = [file for file in readable if file not in CODE_FILES]
    return f"Files (read_skill_files): {', '.join(readable[:OUTLINE_LINES])}" if readable else ""


def _attribute(text: str) -> str:
    # The skill's author chooses the name and the path, which must not end the attribute.
    return text.replace("&", "&amp;").replace('"', "&quot;").replace("<", "&lt;").replace("\n", " ")
