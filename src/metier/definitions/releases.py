"""Versions, and the clauses that they satisfy, as PEP 440 has them. Pure; a test compares it with `packaging`."""

import re

from metier.dataclass import dataclass
from metier.lazy_regex import lazy_regex

_VERSION = lazy_regex(
    r"\s*v?(?:(?P<epoch>\d+)!)?(?P<release>\d+(?:\.\d+)*)"
    r"(?:[-_.]?(?P<stage>alpha|a|beta|b|preview|pre|c|rc)[-_.]?(?P<stage_number>\d*))?"
    r"(?P<post>-(?P<bare>\d+)|[-_.]?(?:post|rev|r)[-_.]?(?P<post_number>\d*))?"
    r"(?P<dev>[-_.]?dev[-_.]?(?P<dev_number>\d*))?"
    r"(?:\+(?P<local>[a-z0-9]+(?:[-_.][a-z0-9]+)*))?\s*",
    re.IGNORECASE | re.ASCII,
)
_CLAUSE = lazy_regex(r"\s*(?P<sign>~=|===|==|!=|<=|>=|<|>)\s*(?P<version>[^\s,]+?)(?P<any>\.\*)?\s*")
_STAGES = {"alpha": "a", "beta": "b", "c": "rc", "pre": "rc", "preview": "rc"}


class BadVersion(ValueError):
    """A text that is no version, or no list of clauses."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Release:
    """A version, taken apart."""

    epoch: int
    numbers: tuple[int, ...]
    stage: tuple[str, int] | None
    post: int | None
    dev: int | None
    local: tuple[tuple[int, int, str], ...] = ()

    @property
    def rank(self) -> tuple[object, ...]:
        """What orders releases: development before stages before the release before what was mended after it."""
        last = max((place for place, number in enumerate(self.numbers, start=1) if number), default=0)
        stage: tuple[object, ...] = (0, *self.stage) if self.stage else (1,)
        if self.stage is None and self.post is None and self.dev is not None:
            stage = (-1,)
        post = -1 if self.post is None else self.post
        dev = (1, 0) if self.dev is None else (0, self.dev)
        return (self.epoch, self.numbers[:last], stage, post, dev, self.local)

    @property
    def base(self) -> tuple[object, ...]:
        return self.rank[:2]

    def begins_with(self, other: "Release") -> bool:
        """The same numbers as far as the other one has some."""
        size = len(other.numbers)
        padded = (*self.numbers, *(0 for _ in range(size)))
        return self.epoch == other.epoch and padded[:size] == other.numbers


def parse_release(text: str) -> Release:
    """Raises `BadVersion`."""
    found = _VERSION.fullmatch(text)
    if found is None:
        raise BadVersion(text)
    stage = (found["stage"] or "").lower()
    return Release(
        epoch=int(found["epoch"] or 0),
        numbers=tuple(int(number) for number in found["release"].split(".")),
        stage=(_STAGES.get(stage, stage), int(found["stage_number"] or 0)) if stage else None,
        post=int(found["bare"] or found["post_number"] or 0) if found["post"] else None,
        dev=int(found["dev_number"] or 0) if found["dev"] else None,
        local=tuple(
            (1, int(part), "") if part.isdigit() else (0, 0, part)
            for part in re.split(r"[-_.]", (found["local"] or "").lower())
            if part
        ),
    )


def is_allowed(version: str, clauses: str) -> bool:
    """Whether a version satisfies all clauses, such as `>=3.11,<4`. Raises `BadVersion`."""
    release = parse_release(version)
    judged = [_satisfies(release, clause) for clause in clauses.split(",") if clause.strip()]
    return all(judged)


def _satisfies(release: Release, clause: str) -> bool:
    found = _CLAUSE.fullmatch(clause)
    if found is None or (found["any"] and found["sign"] not in ("==", "!=")):
        raise BadVersion(clause)
    sign, other = found["sign"], parse_release(found["version"])
    match sign:
        case "===":
            return release.rank == other.rank
        case "==" | "!=":
            is_same = release.begins_with(other) if found["any"] else release.rank == other.rank
            return is_same is (sign == "==")
        case "~=":
            return _is_compatible(release, other, clause)
        case ">=":
            return release.rank >= other.rank
        case "<=":
            return release.rank <= other.rank
        case "<":
            # A stage of the very release that the clause leaves out is left out too.
            is_stage = _is_early(release) and not _is_early(other) and release.base == other.base
            return release.rank < other.rank and not is_stage
        case _:
            is_mended = release.post is not None and other.post is None and release.base == other.base
            return release.rank > other.rank and not is_mended


def _is_compatible(release: Release, other: Release, clause: str) -> bool:
    if len(other.numbers) < 2:
        raise BadVersion(clause)
    shorter = Release(epoch=other.epoch, numbers=other.numbers[:-1], stage=None, post=None, dev=None)
    return release.rank >= other.rank and release.begins_with(shorter)


def _is_early(release: Release) -> bool:
    return release.stage is not None or release.dev is not None
