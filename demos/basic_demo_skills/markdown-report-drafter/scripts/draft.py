# /// script
# requires-python = ">=3.12"
# dependencies = []
# ///
"""Draft a report from results of other skills, JSON or Markdown: a .md file and a self-contained .html page.

Everything that comes in is data: it is escaped, and the page loads nothing from anywhere. An existing file is never
overwritten unless --force is given. Standard library only. With --json nothing but one JSON object goes to stdout.
"""

from __future__ import annotations

import argparse
import html
import io
import json
import os
import re
import sys
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from datetime import date
from pathlib import Path
from typing import Any

TEMPLATE = Path(__file__).resolve().parent.parent / "assets" / "page.html"
MOST_ROWS, LONGEST_INLINE, MOST_INPUT_BYTES = 50, 20_000, 50_000_000
OUTLINE = ("Context", "Findings", "Risks and open questions", "Next steps")


@dataclass(frozen=True, slots=True)
class Block:
    """A piece of a report: heading, text, quote, code, items or table. Texts are inline Markdown, code is plain."""

    kind: str
    text: str = ""
    level: int = 2
    rows: tuple[tuple[str, ...], ...] = ()
    columns: tuple[str, ...] = ()
    bar: int = -1


def flat(value: object) -> str:
    """One line without control characters."""
    text = "" if value is None else "yes" if value is True else "no" if value is False else str(value)
    return re.sub(r"\s+", " ", "".join(char if char.isprintable() else " " for char in text)).strip()


def esc(value: object) -> str:
    """Text that Markdown shows as it is."""
    text = re.sub(r"([\\`*_\[\]<>|&~])", r"\\\1", flat(value))
    return re.sub(r"^(\d*)([#+=.)-])(?=\s|$|#)", r"\1\\\2", text)


def code(value: object) -> str:
    text = flat(value)
    ticks = "`" * (max((len(run) for run in re.findall(r"`+", text)), default=0) + 1)
    pad = " " if text.startswith("`") or text.endswith("`") else ""
    return f"{ticks}{pad}{text}{pad}{ticks}" if text else ""


def number(value: object) -> str:
    return f"{value:,}".replace(",", " ") if isinstance(value, int) and not isinstance(value, bool) else esc(value)


def table(columns: list[str], rows: list[list[str]], *, bar: int = -1) -> Iterator[Block]:
    if rows:
        shown = tuple(tuple(row) for row in rows[:MOST_ROWS])
        yield Block("table", rows=shown, columns=tuple(columns), bar=bar)
    if len(rows) > MOST_ROWS:
        yield Block("text", f"… and {len(rows) - MOST_ROWS} more.")


def rows_in(result: dict[str, Any], key: str) -> list[dict[str, Any]]:
    value = result.get(key)
    return [row for row in value if isinstance(row, dict)] if isinstance(value, list) else []


def size_in(row: dict[str, Any]) -> str:
    count = row.get("bytes")
    if not isinstance(count, int) or count < 1000:
        return f"{number(count)} bytes"
    unit = min(3, (len(str(count)) - 1) // 3)
    return f"{count / 1000**unit:.1f} {('kB', 'MB', 'GB')[unit - 1]}"


def show_inventory(result: dict[str, Any]) -> Iterator[Block]:
    rows: list[list[str]] = []
    for r in rows_in(result, "languages"):
        counts = [number(r.get("files")), number(r.get("lines")), size_in(r)]
        rows.append([esc(r.get("language")), *counts, f"{esc(r.get('percent_of_bytes'))} %"])
    yield from table(["Language", "Files", "Lines", "Size", "Share"], rows, bar=4)
    yield Block("heading", "Largest files", level=3)
    yield from table(["File", "Size"], [[code(r.get("path")), size_in(r)] for r in rows_in(result, "largest")])
    yield Block("heading", "Newest files", level=3)
    newest = [[code(r.get("path")), esc(r.get("modified"))] for r in rows_in(result, "newest")]
    yield from table(["File", "Changed"], newest)
    if duplicates := rows_in(result, "duplicates"):
        yield Block("heading", "Identical files", level=3)
        rows = [[", ".join(map(code, r.get("paths") or [])), number(r.get("copies")), size_in(r)] for r in duplicates]
        yield from table(["Files", "Copies", "Size of each"], rows)


def show_search(result: dict[str, Any]) -> Iterator[Block]:
    terms = [[esc(r.get("term")), number(r.get("files")), number(r.get("hits"))] for r in rows_in(result, "terms")]
    yield from table(["Term", "Files", "Hits"], terms)
    for row in rows_in(result, "results")[:15]:
        yield Block("heading", code(row.get("path")), level=3)
        lines: list[str] = []
        for index, snippet in enumerate(rows_in(row, "snippets")):
            lines += ["  …"] if index else []
            for line in rows_in(snippet, "lines"):
                lines.append(f"{flat(line.get('line')):>5}{'>' if line.get('terms') else ' '} {line.get('text')}")
        yield Block("code", "\n".join(lines))


def show_summary(result: dict[str, Any]) -> Iterator[Block]:
    rows = [("", f"{esc(r.get('text'))} {code(r.get('cite'))}") for r in rows_in(result, "sentences")]
    yield Block("items", rows=tuple(rows))
    if terms := result.get("key_terms"):
        yield Block("text", "**Key terms:** " + ", ".join(esc(term) for term in terms))


def show_checklist(result: dict[str, Any]) -> Iterator[Block]:
    groups: dict[str, list[tuple[str, str]]] = {}
    for row in rows_in(result, "items"):
        notes = [f"**{esc(row['owner'])}**"] if row.get("owner") else []
        notes += [f"{'overdue, ' if row.get('overdue') else ''}due {esc(row['due'])}"] if row.get("due") else []
        text = " · ".join([esc(row.get("text")), *notes, code(row.get("cite"))])
        name = "Done" if row.get("done") else f"{flat(row.get('priority')).capitalize()} priority"
        groups.setdefault(name, []).append(("x" if row.get("done") else "o", text))
    for name, rows in groups.items():
        yield Block("heading", esc(name), level=3)
        yield Block("items", rows=tuple(rows))


def show_any(value: Any, level: int = 3) -> Iterator[Block]:
    """Any JSON value: plain values as a table, lists as items or tables, objects as sections."""
    if isinstance(value, dict):
        plain = {key: item for key, item in value.items() if not isinstance(item, dict | list)}
        plain = {key: item for key, item in plain.items() if key not in ("summary", "skill") and item is not None}
        yield from table(["Field", "Value"], [[esc(key), esc(item)] for key, item in plain.items()])
        for key, item in value.items():
            if isinstance(item, dict | list) and item:
                yield Block("heading", esc(key.replace("_", " ").capitalize()), level=min(level, 6))
                yield from show_any(item, level + 1) if level < 6 else iter([Block("text", esc(json.dumps(item)))])
    elif isinstance(value, list) and value and all(isinstance(row, dict) for row in value):
        columns = list(dict.fromkeys(key for row in value for key in row))[:7]
        rows = [[cell(row.get(key)) for key in columns] for row in value]
        yield from table([esc(key.replace("_", " ").capitalize()) for key in columns], rows)
    elif isinstance(value, list):
        yield Block("items", rows=tuple(("", cell(item)) for item in value[:MOST_ROWS]))
    elif isinstance(value, str):
        yield from parse_markdown(value)
    elif value is not None:
        yield Block("text", esc(value))


def cell(value: Any) -> str:
    return code(json.dumps(value, ensure_ascii=False)[:200]) if isinstance(value, dict | list) else number(value)


VIEWS: dict[str, Callable[[dict[str, Any]], Iterator[Block]]] = {
    "workspace-inventory": show_inventory,
    "keyword-search-extractor": show_search,
    "content-summarizer": show_summary,
    "task-checklist-builder": show_checklist,
}

TITLES = {
    "workspace-inventory": "What is in the workspace",
    "keyword-search-extractor": "Where it is mentioned",
    "content-summarizer": "What the texts say",
    "task-checklist-builder": "What is to be done",
}


def unwrap(value: Any, name: str = "") -> Iterator[tuple[str, Any]]:
    """(name, result) of every result in a file: a bare result, a step with its result, or a list of either."""
    if isinstance(value, list):
        for index, item in enumerate(value, 1):
            yield from unwrap(item, name or (f"Step {index}" if len(value) > 1 else ""))
        return
    if not isinstance(value, dict) or ("skill" in value and "summary" in value and "result" not in value):
        yield (value.get("skill") if isinstance(value, dict) else None) or name or "Notes", value
        return
    name = flat(value.get("skill") or value.get("title") or value.get("name") or value.get("script")) or name
    if value.get("success") is False:
        yield name or "Step", {"summary": f"This step failed: {flat(value.get('message') or value.get('error'))}"}
    elif isinstance(value.get("result"), dict | list | str):
        yield from unwrap(value["result"], name)
    elif isinstance(steps := value.get("steps") or value.get("results"), list) and "summary" not in value:
        yield from unwrap(steps, name)
    else:
        yield name or "Results", value


def title_for(name: str) -> str:
    return TITLES.get(name) or esc(re.sub(r"[-_]", " ", name).capitalize() if re.fullmatch(r"[\w-]+", name) else name)


def section_of(name: str, result: Any, *, with_summary: bool) -> list[Block]:
    blocks = [Block("heading", title_for(name))]
    if not isinstance(result, dict):
        return [*blocks, *show_any(result)]
    if with_summary and (text := flat(result.get("summary"))) and name != "content-summarizer":
        blocks.append(Block("text", esc(text)))
    return [*blocks, *VIEWS.get(name, show_any)(result)]


LINE_KINDS = re.compile(
    r"(?P<fence>\s*(?:```|~~~))|(?P<heading>#{1,6})\s+(?P<title>.*?)\s*#*$|(?P<rule>\s*(?:-{3,}|\*{3,}|_{3,})\s*$)"
    r"|(?P<row>\s*\|.*\|\s*$)|(?P<item>\s*(?:[-*+]|\d{1,3}[.)])\s+)(?P<words>.*)$|(?P<quote>\s*>\s?)(?P<said>.*)$|(?P<blank>\s*$)"
)


def parse_markdown(text: str, deeper: int = 1) -> Iterator[Block]:
    """The Markdown that notes are written in: headings, paragraphs, items, tables, quotes and code."""
    lines = iter(text.replace("\r\n", "\n").split("\n"))
    waiting: list[tuple[str, str]] = []
    for line in lines:
        match = LINE_KINDS.match(line)
        kind = match.lastgroup if match else "text"
        if match and match["fence"]:
            yield from gather(waiting)
            inside: list[str] = []
            for row in lines:
                if row.strip().startswith(match["fence"].strip()):
                    break
                inside.append(row)
            yield Block("code", "\n".join(inside))
        elif match and match["heading"]:
            yield from gather(waiting)
            yield Block("heading", match["title"], level=min(6, len(match["heading"]) + deeper))
        elif kind in ("blank", "rule"):
            yield from gather(waiting)
        else:
            kind = {"row": "row", "words": "item", "said": "quote"}.get(kind or "", "text")
            if waiting and waiting[-1][0] != kind and not (kind == "text" and waiting[-1][0] == "item"):
                yield from gather(waiting)
            if kind == "text" and waiting and waiting[-1][0] == "item":
                waiting[-1] = ("item", f"{waiting[-1][1]} {line.strip()}")
            else:
                words = match[{"item": "words", "quote": "said"}.get(kind, 0)] if match else line
                waiting.append((kind, words.strip()))
    yield from gather(waiting)


def gather(waiting: list[tuple[str, str]]) -> Iterator[Block]:
    """The block that the waiting lines make together; empties the list."""
    if not waiting:
        return
    kind, words = waiting[0][0], [text for _, text in waiting]
    waiting.clear()
    if kind == "item":
        marks = [(re.match(r"\[([ xX])\]\s+(.*)$", text), text) for text in words]
        yield Block("items", rows=tuple((("x" if m[1] in "xX" else "o"), m[2]) if m else ("", t) for m, t in marks))
    elif kind == "row":
        cells = [[part.strip().replace("\\|", "|") for part in re.split(r"(?<!\\)\|", row)[1:-1]] for row in words]
        body = [row for row in cells[1:] if not all(re.fullmatch(r":?-+:?", part) for part in row)]
        width = len(cells[0])
        rows = tuple(tuple((row + [""] * width)[:width]) for row in body)
        yield Block("table", rows=rows, columns=tuple(cells[0]))
    else:
        yield Block(kind, " ".join(words))


def to_markdown(blocks: list[Block]) -> str:
    parts: list[str] = []
    for block in blocks:
        if block.kind == "heading":
            parts.append(f"{'#' * block.level} {block.text}")
        elif block.kind == "code":
            fence = "`" * max(3, 1 + max((len(run) for run in re.findall(r"`+", block.text)), default=0))
            parts.append(f"{fence}text\n{block.text}\n{fence}")
        elif block.kind == "items":
            marks = {"x": "- [x]", "o": "- [ ]"}
            parts.append("\n".join(f"{marks.get(state, '-')} {text}" for state, text in block.rows))
        elif block.kind == "table":
            rows = [block.columns, tuple("---" for _ in block.columns), *block.rows]
            parts.append("\n".join(f"| {' | '.join(re.sub(r'(?<!\\)[|]', r'\\|', c) for c in row)} |" for row in rows))
        else:
            parts.append(f"> {block.text}" if block.kind == "quote" else block.text)
    return "\n\n".join(part for part in parts if part.strip()) + "\n"


INLINE = re.compile(
    r"\\(?P<escaped>[!-/:-@\[-`{-~])|(?P<ticks>`+)(?P<code>.+?)(?P=ticks)(?!`)|\*\*(?P<bold>\S(?:.*?\S)?)\*\*"
    r"|(?<![\w*])\*(?P<slanted>[^\s*](?:[^*]*[^\s*])?)\*(?![\w*])|!\[(?P<picture>[^\]]*)\]\([^)]*\)"
    r"|\[(?P<words>[^\]]+)\]\((?P<target>[^)\s]+)\)"
)


def inline(text: str) -> str:
    """Inline Markdown as HTML. Only http, https and mailto links become links; pictures become their words."""
    out, position = "", 0
    for match in INLINE.finditer(text) if len(text) < LONGEST_INLINE else ():
        out += html.escape(text[position : match.start()])
        position = match.end()
        if match["escaped"]:
            out += html.escape(match["escaped"])
        elif match["code"]:
            out += f"<code>{html.escape(match['code'].strip())}</code>"
        elif match["bold"] or match["slanted"]:
            tag = "strong" if match["bold"] else "em"
            out += f"<{tag}>{inline(match['bold'] or match['slanted'])}</{tag}>"
        elif match["words"] and re.match(r"(?:https?://|mailto:)", match["target"], re.IGNORECASE):
            target = html.escape(match["target"])
            out += f'<a href="{target}" rel="noopener noreferrer">{inline(match["words"])}</a>'
        else:
            out += html.escape(match["words"] or match["picture"] or "")
    return out + html.escape(text[position:])


def table_html(block: Block) -> str:
    amount = re.compile(r"[\d\s.,]*(?: ?(?:%|bytes|kB|MB|GB))?")
    numeric = [all(amount.fullmatch(row[index]) for row in block.rows) for index in range(len(block.columns))]
    classes = [' class="number"' if right else "" for right in numeric]
    head = "".join(f"<th{c}>{inline(name)}</th>" for name, c in zip(block.columns, classes, strict=True))
    body = ""
    for row in block.rows:
        cells = [inline(text) for text in row]
        if block.bar >= 0 and (share := re.match(r"\d+(?:\.\d+)?", row[block.bar])):
            width = min(100.0, float(share[0]))
            cells[block.bar] += f' <span class="bar"><i style="width:{width}%"></i></span>'
        body += "<tr>" + "".join(f"<td{c}>{text}</td>" for text, c in zip(cells, classes, strict=True)) + "</tr>\n"
    return f'<div class="table"><table>\n<thead><tr>{head}</tr></thead>\n<tbody>\n{body}</tbody></table></div>'


def block_html(block: Block, anchor: str) -> str:
    if block.kind == "heading":
        return f'<h{block.level} id="{anchor}">{inline(block.text)}</h{block.level}>'
    if block.kind == "code":
        return f"<pre><code>{html.escape(block.text)}</code></pre>"
    if block.kind == "table":
        return table_html(block)
    if block.kind == "items":
        classes = {"x": ' class="task done"', "o": ' class="task"'}
        rows = "\n".join(f"<li{classes.get(state, '')}>{inline(text)}</li>" for state, text in block.rows)
        return f"<ul>\n{rows}\n</ul>" if rows else ""
    tag = "blockquote" if block.kind == "quote" else "p"
    return f"<{tag}>{inline(block.text)}</{tag}>"


def to_html(title: str, lead: list[Block], blocks: list[Block], footer: str) -> str:
    anchors = [f"s{index}" for index, _ in enumerate(blocks)]
    chapters = [(a, b) for a, b in zip(anchors, blocks, strict=True) if b.kind == "heading" and b.level == 2]
    links = "\n".join(f'<li><a href="#{anchor}">{inline(block.text)}</a></li>' for anchor, block in chapters)
    parts = {
        "TITLE": html.escape(title),
        "LEAD": "\n".join(block_html(block, "") for block in lead),
        "CONTENTS": f"<nav><ol>\n{links}\n</ol></nav>" if len(chapters) > 2 else "",
        "BODY": "\n".join(block_html(block, anchor) for anchor, block in zip(anchors, blocks, strict=True)),
        "FOOTER": html.escape(footer),
    }
    return re.sub(r"@([A-Z]+)@", lambda match: parts[match[1]], TEMPLATE.read_text(encoding="utf-8"))


class Refused(Exception):
    """A sentence for stderr."""


def read_input(name: str) -> list[tuple[str, Any]]:
    path = Path(name).expanduser()
    try:
        if path.stat().st_size > MOST_INPUT_BYTES:
            raise Refused(f"'{path}' is larger than {MOST_INPUT_BYTES // 10**6} MB")
        text = path.read_bytes().decode("utf-8-sig", "replace")
    except OSError as error:
        raise Refused(f"Cannot read '{path}': {error.strerror}") from error
    if path.suffix.lower() != ".json":
        return [(path.stem, text)]
    try:
        return list(unwrap(json.loads(text) if text.strip() else []))
    except (ValueError, RecursionError) as error:
        raise Refused(f"'{path}' is not JSON: {error}") from error


def read_section(text: str) -> tuple[str, str]:
    title, separator, body = text.partition("=")
    if not separator or not title.strip():
        raise Refused(f"'{flat(text)[:60]}' is not a section such as 'Risks=What could go wrong'")
    return title.strip(), body


KINDS = r"(?P<kind>(?:status )?report|summary|document|page)"
ASKED_FOR = rf"(?i:(?:write|draft|make|export) (?:me |us )?(?:an? |the )?(?:short )?{KINDS}(?: (?:of|on|about|for))?\b ?(?P<subject>.*))"
SAID_BEFORE = ("", "it", "this", "that", "them", "all", "everything", "all of it", "the results", "the findings")


def title_of(options: argparse.Namespace, names: list[str]) -> str:
    """The one that was given, else the subject of the request; where it names none, what the report tells of."""
    request = re.split(r"(?<=[.!?])\s|,\s*then\b|;", flat(options.task))[0].rstrip(".")
    request = re.sub(r"^(?:please|first)\b,?\s*", "", request, flags=re.IGNORECASE)
    if asked := re.fullmatch(ASKED_FOR, request):
        kind, subject = asked["kind"].capitalize(), asked["subject"].strip()
        told = ", ".join(dict.fromkeys(title_for(name)[:1].lower() + title_for(name)[1:] for name in names))
        request = f"{kind}: {told or 'outline'}" if subject.lower() in SAID_BEFORE else f"{kind} on {subject}"
    return flat(options.title) or request[:1].upper() + request[1:89] + ("…" if len(request) > 90 else request[89:]) or "Report"


def compose(results: list[tuple[str, Any]]) -> list[Block]:
    blocks: list[Block] = []
    points = [(name, flat(result.get("summary"))) for name, result in results if isinstance(result, dict)]
    points = [(name, text if len(text) <= 300 else text[:299] + "…") for name, text in points if text]
    if len(points) > 1:
        rows = tuple(("", f"**{title_for(name)}:** {esc(text)}") for name, text in points)
        blocks += [Block("heading", "At a glance"), Block("items", rows=rows)]
    for name, result in results:
        blocks += section_of(name, result, with_summary=len(points) < 2)
    for name in () if results else OUTLINE:
        blocks += [Block("heading", name), Block("text", "*To be written.*")]
    return blocks


def write(folder: Path, name: str, text: str, *, force: bool) -> Path:
    """Write whole or not at all; a name that is taken gets a number unless force is given."""
    target = folder / name
    count = 2
    while target.exists() and not force:
        target = folder / f"{Path(name).stem}-{count}{Path(name).suffix}"
        count += 1
    try:
        folder.mkdir(parents=True, exist_ok=True)
        handle, temporary = tempfile.mkstemp(dir=folder, prefix=".draft-", suffix=target.suffix)
        with os.fdopen(handle, "w", encoding="utf-8", newline="\n") as stream:
            stream.write(text)
        os.chmod(temporary, 0o644)
        os.replace(temporary, target)
    except OSError as error:
        raise Refused(f"Cannot write '{target}': {error.strerror}") from error
    return target.resolve()


def draft(options: argparse.Namespace) -> dict[str, Any]:
    names = [name for name in [options.previous, *options.input] if name]
    results = [found for name in names for found in read_input(name)]
    results += [read_section(text) for text in options.section]
    title, day = title_of(options, [name for name, _ in results]), options.date or date.today().isoformat()
    lead = [Block("text", esc(day))]
    if options.task.strip():
        lead.append(Block("quote", f"Request: {esc(options.task)}"))
    blocks = compose(results)
    markdown = to_markdown([Block("heading", esc(title), level=1), *lead, *blocks])
    sections = [flat(re.sub(r"\\(.)", r"\1", b.text)) for b in blocks if b.kind == "heading" and b.level == 2]
    artifacts: list[str] = []
    if options.out:
        page = to_html(title, lead, blocks, f"{title} · {day}")
        folder = Path(options.out).expanduser()
        written = [(f"{options.name}.md", markdown), (f"{options.name}.html", page)]
        artifacts = [str(write(folder, name, text, force=options.force)) for name, text in written]
    kind = f"a report with {len(sections)} sections" if results else "an outline only, because no results were given"
    where = f": {', '.join(artifacts)}" if artifacts else ""
    result = {"summary": f"Drafted {kind}, '{title}'{where}", "skill": "markdown-report-drafter", "title": title}
    return result | {"artifacts": artifacts, "sections": sections} | ({} if artifacts else {"markdown": markdown})


def build_parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(description="Draft a report as Markdown and as a self-contained HTML page.")
    parser.add_argument("--previous", default="", help="JSON file with the results of earlier steps")
    parser.add_argument("--input", action="append", default=[], metavar="FILE", help="a .json or .md file (repeatable)")
    parser.add_argument("--section", action="append", default=[], metavar="TITLE=TEXT", help="a section (repeatable)")
    parser.add_argument("--title", default="", help="title (default: taken from --task)")
    parser.add_argument("--task", default="", help="the request that the report answers")
    parser.add_argument("--date", default="", help="date on the report (default: today)")
    parser.add_argument("--out", default="", help="folder to write to (default: print the Markdown)")
    parser.add_argument("--name", default="report", help="name of the files, without ending (default: %(default)s)")
    parser.add_argument("--force", action="store_true", help="overwrite files of that name")
    parser.add_argument("--json", action="store_true", dest="as_json", help="print one JSON object instead of text")
    return parser


def join_values(arguments: list[str], names: tuple[str, ...]) -> list[str]:
    """Bind the word after an option to it, so that a value may start with a dash."""
    words = iter(arguments)
    return [f"{word}={next(words, '')}" if word in names else word for word in words]


def main() -> int:
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(encoding="utf-8", errors="backslashreplace")
    names = ("--previous", "--input", "--section", "--title", "--task", "--date", "--out", "--name")
    parser = build_parser()
    options = parser.parse_args(join_values(sys.argv[1:], names))
    if not re.fullmatch(r"[\w][\w.-]{0,99}", options.name):
        parser.error(f"'{flat(options.name)}' is not a file name")
    try:
        result = draft(options)
    except Refused as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    text = result.get("markdown") or "\n".join(result["artifacts"])
    print(json.dumps(result, ensure_ascii=False, indent=2) if options.as_json else text)
    return 0


if __name__ == "__main__":
    sys.exit(main())
