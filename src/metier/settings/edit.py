"""Change one setting in the text of `agent.yaml` and leave every other character as it is. Pure: text in, text out."""

import re
from typing import cast

import yaml

from metier.errors import UsageError

type Tree = dict[str, Tree | list[str] | str | None]


def set_in_text(text: str, key: str, rendered: str) -> str:
    """The text with `key` (dotted) at the value `rendered`, which is one line of YAML. Comments stay.

    Raises `UsageError` where the file is written in a way that cannot be changed like that.
    """
    path = key.split(".")
    before = _read(text)
    changed = _change(text, path, rendered)
    # Whatever form the file has: the change must be there, and nothing else may have changed.
    if _read(changed) != _set(before, path, _read_value(rendered)):
        raise UsageError(
            f"{key} cannot be changed in this file without changing other lines", hint="Change it in an editor"
        )
    return changed


def _change(text: str, path: list[str], rendered: str) -> str:
    # The library leaves the types of its loaders open.
    root = cast("yaml.Node | None", yaml.compose(text, Loader=yaml.SafeLoader))  # pyright: ignore[reportUnknownMemberType]
    if not isinstance(root, yaml.MappingNode):
        return f"{_end_line(text)}{_render_block(path, rendered, indent=0)}"
    node, rest = root, list(path)
    while True:
        found = _find(node, rest[0])
        if found is None:
            return _insert(text, node, _render(node, rest, rendered))
        name, value = found
        if len(rest) == 1:
            return f"{text[: name.end_mark.index]}: {rendered}{text[_get_end(value) :]}"
        rest.pop(0)
        if not isinstance(value, yaml.MappingNode):
            # A section with nothing in it yet.
            block = _render_block(rest, rendered, indent=name.start_mark.column + 2)
            end = text.find("\n", value.end_mark.index)
            return f"{text}\n{block}" if end < 0 else f"{text[: end + 1]}{block}{text[end + 1 :]}"
        node = value


def _find(node: yaml.MappingNode, name: str) -> tuple[yaml.Node, yaml.Node] | None:
    return next((pair for pair in node.value if pair[0].value == name), None)


def _get_end(node: yaml.Node) -> int:
    """Where the value ends; a block collection would otherwise reach to the next key, over comments."""
    if isinstance(node, yaml.CollectionNode) and not node.flow_style and node.value:
        last = cast("yaml.Node | tuple[yaml.Node, yaml.Node]", node.value[-1])
        return _get_end(last[1] if isinstance(last, tuple) else last)
    return node.end_mark.index


def _render(node: yaml.MappingNode, path: list[str], rendered: str) -> str:
    if not node.flow_style:
        return _render_block(path, rendered, indent=node.start_mark.column)
    *sections, name = path
    opening = "".join(f'"{section}": {{' for section in sections)
    return f'{opening}"{name}": {rendered}{"}" * len(sections)}'


def _insert(text: str, node: yaml.MappingNode, new: str) -> str:
    if node.flow_style:
        # Behind the opening brace, where no comma can be missing.
        start = node.start_mark.index + 1
        return f"{text[:start]}{new}{', ' if node.value else ''}{text[start:]}"
    end = text.find("\n", _get_end(node))
    return f"{_end_line(text)}{new}" if end < 0 else f"{text[: end + 1]}{new}{text[end + 1 :]}"


def _render_block(path: list[str], rendered: str, *, indent: int) -> str:
    *sections, name = path
    lines = [f"{' ' * (indent + 2 * depth)}{section}:" for depth, section in enumerate(sections)]
    return "\n".join([*lines, f"{' ' * (indent + 2 * len(sections))}{name}: {rendered}"]) + "\n"


def _end_line(text: str) -> str:
    return text if not text or text.endswith("\n") else f"{text}\n"


def _read(text: str) -> Tree:
    try:
        # Every scalar stays text.
        value = cast("object", yaml.load(text, Loader=yaml.BaseLoader))  # noqa: S506 - constructs strings only
    except yaml.YAMLError as error:
        where = re.sub(r"\s+", " ", str(error))
        raise UsageError(f"The settings file is not YAML: {where}", hint="Run `agent config validate`") from error
    return cast("Tree", value) if isinstance(value, dict) else {}


def _read_value(rendered: str) -> list[str] | str | None:
    return cast("list[str] | str | None", _read(f"value: {rendered}")["value"])


def _set(tree: Tree, path: list[str], value: list[str] | str | None) -> Tree:
    name, *rest = path
    if not rest:
        return {**tree, name: value}
    below = tree.get(name)
    return {**tree, name: _set(below if isinstance(below, dict) else {}, rest, value)}
