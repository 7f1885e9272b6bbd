"""Whom an agent may fetch pages from: `web: {allow: […], deny: […]}`, checked when the definition is read."""

from metier.dataclass import dataclass
from metier.definitions.text.fields import Fields
from metier.definitions.text.yaml_text import Mapping, Node, Scalar, Sequence
from metier.lazy_regex import lazy_regex

KEYS = ("allow", "deny")
_MAX_CHARACTERS = 253
_LABEL = lazy_regex(r"[a-z0-9_](?:[a-z0-9_-]{0,61}[a-z0-9_])?")


@dataclass(frozen=True, slots=True, kw_only=True)
class WebLists:
    """Domains, each with everything below it."""

    allow: tuple[str, ...] = ()
    """Empty: all."""
    deny: tuple[str, ...] = ()
    """Wins over `allow`."""


def read_web_lists(fields: Fields, key: str = "web") -> WebLists:
    """Every mistake is a problem with its line: a list that is half understood would allow something else."""
    entry = fields.find(key)
    if entry is None:
        return WebLists()
    if not isinstance(entry.value, Mapping):
        hint = "Write 'allow:' or 'deny:' below it, each with a list of domains"
        fields.report("error", "not_a_mapping", f"Field {key!r} must be a mapping", line=entry.line, hint=hint)
        return WebLists()
    lists = Fields(entry.value, file=fields.file, strict=True, problems=fields.problems, first_line=entry.line)
    lists.check_keys(KEYS)
    return WebLists(allow=_read_domains(lists, "allow"), deny=_read_domains(lists, "deny"))


def _read_domains(lists: Fields, key: str) -> tuple[str, ...]:
    entry = lists.find(key)
    if entry is None:
        return ()
    if isinstance(entry.value, Sequence) and not entry.value.items and key == "allow":
        message = "An empty list allows every domain"
        hint = "Leave 'allow' out, or leave 'WebFetch' out of tools"
        lists.report("error", "empty_domains", message, line=entry.line, hint=hint)
    items: tuple[Node, ...] = entry.value.items if isinstance(entry.value, Sequence) else (entry.value,)
    return tuple(domain for item in items if (domain := _read_domain(lists, item)))


def _read_domain(lists: Fields, item: Node) -> str:
    written = item.value.strip() if isinstance(item, Scalar) else ""
    domain = parse_domain(written)
    if not domain:
        hint = "Write it like 'example.com', without scheme, port, path or '*'; what is below it counts too"
        lists.report("error", "not_a_domain", f"{written!r} is not a domain", line=item.line, hint=hint)
    return domain


def parse_domain(text: str) -> str:
    """The domain in its one plain form, nothing where it is none."""
    plain = text.lower().removesuffix(".")
    try:
        plain = plain if plain.isascii() else plain.encode("idna").decode("ascii")
    except UnicodeError:
        return ""
    if len(plain) > _MAX_CHARACTERS or not all(_LABEL.fullmatch(label) for label in plain.split(".")):
        return ""
    return plain
