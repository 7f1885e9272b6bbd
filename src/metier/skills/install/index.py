"""An index: a file that lists skills with the commit at which each was looked at. There is no service behind it.

`{"skills": [{"name": …, "description": …, "source": "https://…/repo.git", "commit": "40 digits", "subdir": "…"}]}`.
A repository without such a file is an index of the skills that it holds, at its present commit.
"""

import json
from pathlib import Path
from typing import Annotated

import pydantic
from pydantic import Field

from metier.errors import ConfigError
from metier.messages import Value
from metier.skills.install.offers import Offer
from metier.skills.source import GitSource, parse_source

FILE_NAME = "skills-index.json"
_MOST_BYTES = 16 * 1_048_576


class _Row(Value):
    name: Annotated[str, Field(pattern=r"^[A-Za-z0-9_-]{1,64}$")]
    description: Annotated[str, Field(min_length=1, max_length=4_000)]
    source: str
    commit: Annotated[str, Field(pattern=r"^[0-9a-f]{40}$")]
    subdir: str = ""


class _IndexFile(Value):
    skills: tuple[_Row, ...]


def read_index(file: Path, *, allow_file: bool) -> tuple[Offer, ...]:
    """The skills that an index lists, each pinned to its commit. Raises `ConfigError`, `UsageError`.

    `allow_file`: it may name repositories of this machine, as an index that was fetched may not.
    """
    try:
        if file.stat().st_size > _MOST_BYTES:
            raise ConfigError(f"Index {str(file)!r} has more than {_MOST_BYTES} bytes")
        rows = _IndexFile.model_validate(json.loads(file.read_bytes())).skills
    except OSError as error:
        raise ConfigError(f"Index {str(file)!r} cannot be read: {error.strerror}") from error
    except pydantic.ValidationError as error:
        first = error.errors()[0]
        where = ".".join(str(part) for part in first["loc"])
        raise ConfigError(f"Index {str(file)!r} is not right at {where!r}: {first['msg']}") from error
    except (ValueError, RecursionError) as error:
        raise ConfigError(f"Index {str(file)!r} is not JSON") from error
    return tuple(_build_offer(row, file, allow_file=allow_file) for row in rows)


def _build_offer(row: _Row, file: Path, *, allow_file: bool) -> Offer:
    text = f"{row.source}@{row.commit}" + (f"#{row.subdir}" if row.subdir else "")
    source = parse_source(text, allow_file=allow_file)
    if not isinstance(source, GitSource):
        raise ConfigError(f"Index {str(file)!r}: {row.source!r} of skill {row.name!r} is not a git address")
    # An address with a ref or a folder of its own would name a branch that moves instead of the commit.
    if (source.ref, source.subdir) != (row.commit, row.subdir.strip("/")):
        raise ConfigError(f"Index {str(file)!r}: {row.source!r} of skill {row.name!r} holds a ref or a folder")
    return Offer(name=row.name, description=row.description, folder=row.subdir, source=source)
