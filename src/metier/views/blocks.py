"""Split Markdown into blocks that can be rendered one by one, also while the text is still arriving. Pure.

A block ends at a blank line outside fences and lists. A block that becomes too long is split early, which keeps the
part small that is rendered again with each piece of text: a fence is closed and reopened, a list is split between
items, other text between words.
"""

import re
from collections.abc import Iterator

MAX_BLOCK = 6_000
"""Maximum characters of an incomplete block. A longer one is split."""
MAX_FENCE_LINES = 40
MAX_TABLE_ROWS = 60

# As in CommonMark: at most three spaces of indentation, and at most nine digits in a number.
_FENCE = re.compile(r" {0,3}(`{3,}|~{3,})(.*)")
_ITEM = re.compile(r" {0,3}(?:[-*+]|\d{1,9}[.)])(?:[ \t]|$)")
_ROW = re.compile(r"[ \t]*\|")


class BlockSplitter:
    """Collects arriving text and returns complete blocks."""

    def __init__(self) -> None:
        self.rest = ""
        """Return the incomplete block."""

    def feed(self, text: str) -> list[str]:
        """Add text and return the blocks that it completes."""
        self.rest += text
        blocks: list[str] = []
        while (end := find_block_end(self.rest)) is not None:
            block, self.rest = self.rest[:end], self.rest[end:]
            if block.strip():
                blocks.append(block.strip("\n"))
        while len(self.rest) > MAX_BLOCK or self.rest.count("\n") > MAX_FENCE_LINES:
            early = self._cut()
            if early is None:
                break
            blocks.append(early)
        return blocks

    def close(self) -> list[str]:
        """Return the rest as one block."""
        rest, self.rest = self.rest, ""
        return [rest.strip("\n")] if rest.strip() else []

    def _cut(self) -> str | None:
        """Split off a part of a block that is too long; None if it is short enough."""
        fence = _FENCE.match(self.rest)
        if fence:
            return self._cut_fence(fence)
        if _ROW.match(self.rest):
            return self._cut_table()
        if len(self.rest) <= MAX_BLOCK:
            return None
        # Text without a blank is split within a word.
        at = max(self.rest.rfind("\n", 0, MAX_BLOCK), self.rest.rfind(" ", 0, MAX_BLOCK)) + 1 or MAX_BLOCK
        if _ITEM.match(self.rest):
            # Split before an item: the rest is a list again, and its first number continues the count.
            at = _get_last_item(self.rest[:MAX_BLOCK]) or at
        block, self.rest = self.rest[:at], self.rest[at:]
        return block.strip("\n")

    def _cut_fence(self, fence: re.Match[str]) -> str | None:
        opening = self.rest[: self.rest.find("\n") + 1]
        body = self.rest[len(opening) :]
        if not opening:
            return None
        at = body.rfind("\n", 0, MAX_BLOCK) + 1
        if not at and len(body) <= MAX_BLOCK:
            return None
        at = at or MAX_BLOCK
        # The rest starts with the fence again, so that it is still code.
        self.rest = opening + body[at:]
        return f"{opening}{body[:at].rstrip(chr(10))}\n{fence[1]}"

    def _cut_table(self) -> str | None:
        """Split a table. The header is repeated above the remaining rows."""
        lines = self.rest.splitlines(keepends=True)
        if len(lines) <= MAX_TABLE_ROWS and len(self.rest) <= MAX_BLOCK:
            return None
        # Without the last line, which may still be arriving.
        head, rows = "".join(lines[:2]), lines[2:-1]
        if not rows or len(head) > MAX_BLOCK:  # no table: one line without end
            block, self.rest = self.rest[:MAX_BLOCK], self.rest[MAX_BLOCK:]
            return block
        self.rest = head + lines[-1]
        return head + "".join(rows)


def split_blocks(text: str) -> Iterator[str]:
    """Split a whole text into blocks."""
    splitter = BlockSplitter()
    yield from splitter.feed(text)
    yield from splitter.close()


def find_block_end(text: str) -> int | None:
    """Return the end of the first block, or None while it may continue."""
    fence, is_list, has_text, after_blank = "", False, False, False
    at = 0
    for line in text.splitlines(keepends=True):
        is_whole = line.endswith("\n")
        if fence:
            if _closes(fence, line):
                return at + len(line) if is_whole else None
        elif not line.strip():
            after_blank = has_text and is_whole
        else:
            goes_on = is_list and (line[0] in " \t" or _ITEM.match(line) is not None)
            if after_blank and not goes_on:
                return at
            # A fence starts a new block, even directly after a paragraph.
            if opened := _FENCE.match(line):
                if has_text and not is_list:
                    return at
                fence = opened[1] if not is_list else ""
            is_list = is_list or (not has_text and _ITEM.match(line) is not None)
            has_text, after_blank = True, False
        at += len(line)
    return None


def _get_last_item(text: str) -> int:
    """Return the offset of the last line that starts an item at the margin; 0 if only the first line does."""
    start = 0
    for at, character in enumerate(text):
        if character == "\n" and text[at + 1 : at + 2].strip() and _ITEM.match(text, at + 1):
            start = at + 1
    return start


def _closes(fence: str, line: str) -> bool:
    stripped = line.strip()
    # Unlike an opening fence, a closing one has no text after it.
    return stripped.startswith(fence) and not stripped.strip(fence[0])
