"""Painters of a view: permanent lines, and at a terminal a region at the bottom that changes.

The region is painted with one write per frame. Without a terminal, lines are plain text and never change.
"""

import contextlib
import io
import os
import shutil
from collections.abc import Sequence
from typing import Protocol, TextIO

from rich.console import Console, ConsoleDimensions, RenderableType
from rich.text import Text

PLAIN_WIDTH = 120
_LEAST_WIDTH = 20
_BEGIN, _END = "\x1b[?2026h", "\x1b[?2026l"
"""Synchronized output: the terminal shows everything in between at once. Others ignore these sequences."""
_HIDE, _SHOW = "\x1b[?25l", "\x1b[?25h"
_ASCII = str.maketrans(
    {
        "⏎": "/",
        "✓": "+",
        "✗": "x",
        "…": "...",
        "·": "-",
        "▸": ">",
        "↳": ">",
        "█": "#",
        "▌": "|",
        "░": ".",
        "☐": "o",
        "•": "*",
    }
)


class Painter(Protocol):
    """The painter of `live.LiveRun`. A chat with its own prompt implements it for its prompt."""

    @property
    def width(self) -> int: ...

    @property
    def height(self) -> int: ...

    @property
    def is_live(self) -> bool:
        """Return True if `show` has an effect."""
        ...

    def print(self, *renderables: RenderableType) -> None:
        """Print permanent lines above the region."""
        ...

    def show(self, lines: Sequence[Text]) -> None:
        """Replace the lines of the region; None removes it."""
        ...

    def markdown(self, block: str) -> RenderableType:
        """Lay out a block of Markdown."""
        ...

    def lay_out(self, renderable: RenderableType, *, width: int) -> list[Text]:
        """Return the screen lines of a renderable, for the region."""
        ...

    def close(self) -> None: ...


class PlainPainter:
    """Prints plain lines, or colored ones if `CLICOLOR_FORCE` is set."""

    is_live = False

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream
        self._console = build_console(stream, is_terminal=_is_forced())
        self.width = self._console.width

    @property
    def height(self) -> int:
        return 0

    def print(self, *renderables: RenderableType) -> None:
        text = render(self._console, renderables, soft_wrap=True)
        self._stream.write(spell(text, self._stream))
        self._stream.flush()

    def show(self, lines: Sequence[Text]) -> None:
        del lines

    def markdown(self, block: str) -> RenderableType:
        return Text(block)

    def lay_out(self, renderable: RenderableType, *, width: int) -> list[Text]:
        return lay_out(self._console, renderable, width=width)

    def close(self) -> None:
        self._stream.flush()


class TerminalPainter:
    """Prints to a terminal. Its size is read for every frame, because the window can be resized."""

    is_live = True

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream
        self._console = build_console(stream, is_terminal=True)
        self._shown: list[int] = []
        """The width in cells of each line of the region."""
        self._last = ""
        self._is_hidden = False

    @property
    def width(self) -> int:
        return max(_LEAST_WIDTH, self._size()[0])

    @property
    def height(self) -> int:
        return self._size()[1]

    def print(self, *renderables: RenderableType) -> None:
        """Clear the region and print above it. The caller shows the region again."""
        self._paint(render(self._console, renderables, width=self.width), [])

    def show(self, lines: Sequence[Text]) -> None:
        # Measuring the cells of a very long line takes too long. Four code points per cell leave room for combined
        # ones.
        shown = [line[: 4 * self.width] for line in lines]
        for line in shown:
            # Keep the last column free: some terminals wrap to the next line after writing it.
            line.truncate(self.width - 1, overflow="ellipsis")
        region = render(self._console, shown, width=self.width)
        if region == self._last:
            return
        self._paint(region, [line.cell_len for line in shown])
        self._last = region
        if self._is_hidden and not shown:
            self._hide_cursor(is_hidden=False)
        elif shown and not self._is_hidden:
            self._hide_cursor(is_hidden=True)

    def markdown(self, block: str) -> RenderableType:
        # Imported here: the Markdown libraries take 70 ms, and output to a file does not use them.
        from metier.views.markdown import render_block

        return render_block(block)

    def lay_out(self, renderable: RenderableType, *, width: int) -> list[Text]:
        return lay_out(self._console, renderable, width=width)

    def close(self) -> None:
        if self._shown:
            self._paint("", [])
        if self._is_hidden:
            self._hide_cursor(is_hidden=False)
        self._send("")

    def _paint(self, text: str, widths: list[int]) -> None:
        """Replace the region with the text, whose last lines are the new region."""
        # A narrower window has wrapped the lines of the region, so it has more screen lines now.
        up = sum(max(1, -(-each // self.width)) for each in self._shown)
        # Up to the first line of the region, to its first column, then clear everything below.
        clear = f"\x1b[{up}A\r\x1b[J" if up else ""
        if clear or text:
            self._send(f"{_BEGIN}{clear}{spell(text, self._stream)}{_END}")
        self._shown, self._last = widths, ""

    def _hide_cursor(self, *, is_hidden: bool) -> None:
        self._send(_HIDE if is_hidden else _SHOW)
        self._is_hidden = is_hidden

    def _send(self, text: str) -> None:
        # The window was closed. SIGHUP follows and decides how the run continues.
        with contextlib.suppress(OSError):
            self._stream.write(text)
            self._stream.flush()

    def _size(self) -> tuple[int, int]:
        try:
            size = os.get_terminal_size(self._stream.fileno())
        # A closed stream raises ValueError.
        except (OSError, ValueError):
            size = shutil.get_terminal_size()
        return (size.columns or 80, size.lines or 24)


def build_painter(stream: TextIO) -> Painter:
    """Open a live painter for a terminal that can move its cursor, else one for plain lines."""
    return TerminalPainter(stream) if can_move(stream) else PlainPainter(stream)


def can_move(stream: TextIO) -> bool:
    return stream.isatty() and os.environ.get("TERM", "") not in ("dumb", "", "unknown")


def lay_out(console: Console, renderable: RenderableType, *, width: int) -> list[Text]:
    """Render lines of styled text without padding."""
    console.size = ConsoleDimensions(width, console.height)
    lines = console.render_lines(renderable, console.options.update(width=width), pad=False)
    return [Text.assemble(*((segment.text, segment.style or "") for segment in line)) for line in lines]


def _is_forced() -> bool:
    """Return whether to use colors. `NO_COLOR` takes precedence."""
    return os.environ.get("CLICOLOR_FORCE", "0") not in ("", "0") and not os.environ.get("NO_COLOR")


def build_console(stream: TextIO, *, is_terminal: bool) -> Console:
    """Build the console that `render` uses for a stream. It writes nothing itself."""
    console = Console(
        file=stream,
        force_terminal=is_terminal,
        no_color=bool(os.environ.get("NO_COLOR")),
        color_system="auto" if is_terminal and stream.isatty() else "standard" if is_terminal else None,
        width=None if is_terminal and stream.isatty() else int(os.environ.get("COLUMNS") or PLAIN_WIDTH),
        markup=False,
        highlight=False,
        emoji=False,
        legacy_windows=False,
    )
    # Only captures are used. At the end of one, rich writes an empty text, which would fail on a closed terminal.
    console.file = io.StringIO()
    return console


def render(
    console: Console, renderables: Sequence[RenderableType], *, width: int | None = None, soft_wrap: bool = False
) -> str:
    """Render lines with their escape codes and line ends."""
    if not renderables:
        return ""
    if width is not None:
        # Otherwise rich would use `COLUMNS`, which may be outdated.
        console.size = ConsoleDimensions(width, console.height)
    with console.capture() as captured:
        for renderable in renderables:
            console.print(renderable, width=width, soft_wrap=soft_wrap)
    # Rich pads lines of tables and code. A copied line should not end in blanks.
    return "".join(f"{line.rstrip(' ')}\n" for line in captured.get().removesuffix("\n").split("\n"))


def spell(text: str, stream: TextIO) -> str:
    """Replace symbols that the stream's encoding lacks by ASCII."""
    try:
        text.encode(stream.encoding or "utf-8")
    except (UnicodeEncodeError, LookupError):
        return text.translate(_ASCII)
    return text
