"""`agent skills search`, and names of skills that stand in an index."""

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Annotated

import anyio
import typer

from metier.cli.shared.context import current_settings
from metier.cli.shared.options import AsJson
from metier.cli.shared.output import warn_line, write_json, write_line
from metier.cli.skill.installer import open_installer
from metier.definitions.names import canonical_name
from metier.definitions.nearest import find_nearest
from metier.errors import MetierError, UsageError
from metier.lazy_regex import lazy_regex
from metier.routing.router import build_index
from metier.routing.skill import RoutableSkill
from metier.skills.install.offers import Offer
from metier.skills.install.operations import Installer
from metier.skills.install.registry import RegistryEntry
from metier.skills.source import GitSource, InstallSource, parse_source
from metier.telemetry.excerpt import one_line

_NAME = lazy_regex(r"[A-Za-z0-9_-]{1,64}")
_WIDTH = 100
_SETTING = "Set skills.indexes in agent.yaml: a file, a folder or a git repository that lists skills"


def search_indexes(words: str, installer: Installer, *, count: int) -> list[Offer]:
    """The skills of the indexes, ranked as a request ranks the skills of a workspace."""
    offers = dict(enumerate(_list_all(installer)))
    routable = [
        RoutableSkill(id=str(number), name=offer.name, description=offer.description)
        for number, offer in offers.items()
    ]
    ranked = build_index(routable).rank(words, count)
    return [offers[int(each.skill_id)] for each in ranked if each.matched or each.named]


def find_indexed(name: str, installer: Installer) -> Offer | None:
    """The skill of this name in the first index that has it; nothing where the text is an address or a folder.

    Raises `UsageError` where it is a name and no index has it.
    """
    if not _NAME.fullmatch(name) or Path(name).is_dir() or not _find_addresses():
        return None
    offers = list(_list_all(installer))
    found = next((offer for offer in offers if canonical_name(offer.name) == canonical_name(name)), None)
    if found is None:
        nearest = find_nearest(name, [offer.name for offer in offers])
        hint = f"Did you mean {nearest!r}?" if nearest else "`agent skills search WORDS` searches the indexes"
        raise UsageError(f"Neither a folder nor an index has a skill {name!r}", hint=hint)
    return found


def find_newer(entry: RegistryEntry | None, installer: Installer) -> InstallSource | None:
    """The commit at which an index has a skill that was installed at one; a branch or a tag goes its own way."""
    if entry is None or entry.git_url is None or entry.branch or entry.tag:
        return None
    sources = (offer.source for offer in _list_all(installer))
    own = (each for each in sources if isinstance(each, GitSource) and each.url == entry.git_url)
    return next((each for each in own if each.subdir == entry.subdir), None)


def attach(app: typer.Typer) -> None:
    """Add the command to the group `agent skills`."""
    app.command("search")(search)


def search(
    words: Annotated[list[str], typer.Argument(help="What the skill is to do, or its name.")],
    count: Annotated[int, typer.Option("-k", "--count", min=1, help="How many skills to show.")] = 10,
    as_json: AsJson = False,
) -> None:
    """Search the indexes that the settings name. `agent skills add NAME` installs what is found."""
    if not _find_addresses():
        raise UsageError("No index is named", hint=_SETTING)
    found = search_indexes(" ".join(words), open_installer(), count=count)
    if as_json:
        write_json([_as_json(offer) for offer in found])
        return
    width = max((len(offer.name) for offer in found), default=0)
    for offer in found:
        write_line(f"{offer.name:<{width}}  {one_line(offer.description, _WIDTH)}")
    if not found:
        warn_line("No skill of the indexes shares a word with this")


def _find_addresses() -> Sequence[str]:
    return current_settings(None, {}).settings.skills.indexes


def _list_all(installer: Installer) -> Iterator[Offer]:
    """Those of every index that can be read; one that cannot is named and passed over."""
    for address in _find_addresses():
        try:
            yield from anyio.run(installer.read_index, parse_source(address, allow_file=True))
        except MetierError as error:
            warn_line(f"Index {address!r}: {error.sentence}")


def _as_json(offer: Offer) -> dict[str, object]:
    return {"name": offer.name, "description": offer.description, "source": offer.source.describe()}
