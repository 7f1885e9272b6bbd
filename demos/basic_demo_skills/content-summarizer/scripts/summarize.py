# /// script
# requires-python = ">=3.12"
# dependencies = []
# ///
"""Summarise the text of a folder or a file by picking its most central sentences, each with file and line.

Extractive: every sentence of the summary stands in a file; none is made up. Sentences are ranked by how much they have
in common with all others (PageRank over tf-idf similarity), by their place, and by the words of the request; near
repetitions are left out. Standard library only. With --json nothing but one JSON object goes to stdout.
"""

from __future__ import annotations

import argparse
import ast
import io
import json
import math
import os
import re
import stat
import sys
import time
from collections import Counter, defaultdict
from collections.abc import Iterator
from dataclasses import dataclass, field
from fnmatch import fnmatch
from typing import Any

IGNORED_FOLDERS = frozenset(
    ".git .hg .svn .jj node_modules bower_components .venv venv .tox .nox __pycache__ .mypy_cache .ruff_cache "
    ".pytest_cache .hypothesis .gradle .idea .terraform .next .nuxt .cache .eggs target dist build".split()
)
MOST_SKIPPED = 100
PROSE = frozenset(".md .markdown .mdx .txt .rst .adoc .org .text".split())
HASH_CODE = frozenset(".sh .bash .zsh .rb .pl .r .jl .ex .exs .tf .nix .yaml .yml .toml .ps1".split())
SLASH_CODE = frozenset(".c .h .cc .cpp .hpp .cs .go .java .js .jsx .mjs .ts .tsx .rs .swift .kt .php .dart".split())
CANDIDATES = 700
MOST_SENTENCES = 20_000
DAMPING, SIMILAR, LONGEST = 0.85, 0.6, 60
STOP_WORDS = frozenset(
    "a about after again all also an and any are as at be because been before being below between both but by can "
    "could did do does down during each every few for from had has have her here his how i if in into is it its "
    "itself just me more most my no nor not now of off on once one only or other our out over own per same she should "
    "so some such than that the their them then there these they this those through to too two under until up use "
    "used using very was we were what when where which while who why will with would you your summarize summarise "
    "summary file files folder der die das und ist ein eine zu den mit von auf les des une est et le la en que".split()
)
ABBREVIATIONS = frozenset(
    "e.g i.e etc vs cf al mr mrs ms dr prof st no fig figs eq sec ch vol pp approx dept inc ltd co corp jr sr "
    "z.b d.h bzw ca usw u.s u.k a.m p.m jan feb mar apr jun jul aug sep sept oct nov dec".split()
)


@dataclass(slots=True)
class Source:
    """The readable text files under a root, and what was passed over on the way."""

    root: str
    ignore: list[str]
    max_bytes: int
    max_files: int
    deadline: float
    read: int = 0
    skipped: list[dict[str, str]] = field(default_factory=list)
    truncated: bool = False

    def skip(self, path: str, reason: str) -> None:
        if len(self.skipped) < MOST_SKIPPED:
            self.skipped.append({"path": show(os.path.relpath(path, self.root)), "reason": reason})

    def files(self) -> Iterator[tuple[str, str]]:
        """(path to show, text) of every text file, in a fixed order."""
        if os.path.isfile(self.root):
            path, self.root = self.root, os.path.dirname(self.root)
            yield from self.load(path)
            return
        for folder, names, files in os.walk(self.root, onerror=lambda e: self.skip(str(e.filename), str(e.strerror))):
            names[:] = sorted(name for name in names if not self.ignores(folder, name, folder_like=True))
            for name in sorted(files):
                if self.ignores(folder, name, folder_like=False):
                    continue
                if self.read >= self.max_files or time.monotonic() > self.deadline:
                    self.truncated = True
                    return
                yield from self.load(os.path.join(folder, name))

    def ignores(self, folder: str, name: str, *, folder_like: bool) -> bool:
        path = os.path.join(folder, name)
        relative = os.path.relpath(path, self.root).replace(os.sep, "/")
        made = name in IGNORED_FOLDERS or (name == "runs" and os.path.exists(f"{path}/state.db"))
        return (folder_like and made) or any(fnmatch(relative, glob) or fnmatch(name, glob) for glob in self.ignore)

    def load(self, path: str) -> Iterator[tuple[str, str]]:
        """The text of one regular file; links, binary and large files are passed over."""
        try:
            status = os.lstat(path)
            if not stat.S_ISREG(status.st_mode):
                return
            if status.st_size > self.max_bytes:
                self.skip(path, f"larger than {self.max_bytes} bytes")
                return
            with open(path, "rb") as stream:
                data = stream.read(self.max_bytes)
        except OSError as error:
            self.skip(path, error.strerror or type(error).__name__)
            return
        if (text := decode(data)) is not None:
            self.read += 1
            yield show(os.path.relpath(path, self.root)), text


def decode(data: bytes) -> str | None:
    """Text in UTF-8 or UTF-16, or in Latin-1 when it is neither; None for binary data."""
    if data.startswith((b"\xff\xfe", b"\xfe\xff")):
        return data.decode("utf-16", "replace")
    if b"\0" in data[:8192]:
        return None
    try:
        return data.decode("utf-8-sig")
    except UnicodeDecodeError:
        return data.decode("latin-1")


def lines_of(text: str) -> list[str]:
    """Lines as an editor counts them."""
    lines = text.replace("\r\n", "\n").replace("\r", "\n").split("\n")
    return lines if lines[-1] else lines[:-1]


def show(path: str) -> str:
    """A path that is safe to print and to put into JSON: undecodable bytes and control characters are escaped."""
    text = os.fsencode(path).decode("utf-8", "backslashreplace")
    return "".join(char if char.isprintable() else char.encode("unicode_escape").decode() for char in text)


def join_values(arguments: list[str], names: tuple[str, ...]) -> list[str]:
    """Bind the word after an option to it, so that a value may start with a dash."""
    words = iter(arguments)
    return [f"{word}={next(words, '')}" if word in names else word for word in words]


def add_source_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--root", default=".", help="a folder or one file (default: the current folder)")
    parser.add_argument("--ignore", action="append", default=[], metavar="GLOB", help="leave these out (repeatable)")
    parser.add_argument(
        "--max-bytes", type=int, default=4_000_000, help="pass over larger files (default: %(default)s)"
    )
    parser.add_argument("--max-files", type=int, default=20_000, help="stop after so many (default: %(default)s)")
    parser.add_argument("--max-seconds", type=float, default=40, help="stop reading then (default: %(default)s)")
    parser.add_argument("--json", action="store_true", dest="as_json", help="print one JSON object instead of text")


def open_source(options: argparse.Namespace) -> Source | None:
    root = os.path.realpath(os.path.expanduser(options.root or "."))
    if not os.path.exists(root):
        print(f"error: '{show(root)}' does not exist", file=sys.stderr)
        return None
    deadline = time.monotonic() + options.max_seconds
    return Source(root, options.ignore, max(1, options.max_bytes), max(1, options.max_files), deadline)


def use_utf8() -> None:
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(encoding="utf-8", errors="backslashreplace")


@dataclass(slots=True)
class Sentence:
    """One sentence, where it stands, how far down its file (0 to 1), and under which heading."""

    path: str
    line: int
    text: str
    place: float
    heading: str
    terms: Counter[str] = field(default_factory=Counter)
    score: float = 0.0


def stem(word: str) -> str:
    for ending in ("ingly", "edly", "ings", "ing", "ies", "ied", "ed", "es", "s"):
        if word.endswith(ending) and len(word) - len(ending) >= 3:
            return word[: -len(ending)] + ("y" if ending in ("ies", "ied") else "")
    return word


def terms_of(text: str) -> Counter[str]:
    """Stems of words; scripts without spaces give pairs of neighbouring characters."""
    terms: Counter[str] = Counter()
    for word in re.findall(r"[^\W_]+", text.casefold()):
        if re.search(r"[\u3040-\u30ff\u3400-\u9fff\uac00-\ud7af]", word):
            terms.update(word[index : index + 2] for index in range(max(1, len(word) - 1)))
        elif len(word) > 1 and word not in STOP_WORDS and not word.isdigit():
            terms[stem(word)] += 1
    return terms


def split_sentences(text: str) -> list[str]:
    """Split at ends of sentences, not at abbreviations, initials, decimals or file names."""
    sentences: list[str] = []
    start = 0
    for match in re.finditer(r"[.!?…]+[\"'”’)\]*_]*(?=\s+|$)|[。！？]+", text):
        before = text[start : match.start()].rsplit(None, 1)
        last = before[-1].lstrip("([\"'").casefold() if before else ""
        short = match[0].startswith(".") and (last in ABBREVIATIONS or (len(last) == 1 and last.isalpha()))
        if short or (match[0][0] in ".…" and text[match.end() :].lstrip()[:1].islower()):
            continue
        sentences.append(text[start : match.end()].strip())
        start = match.end()
    sentences.append(text[start:].strip())
    return [sentence for sentence in sentences if sentence]


def plain(text: str) -> str:
    """Markdown without its marks: links keep their words, pictures and tags go."""
    text = re.sub(r"!\[[^\]]*\]\([^)]*\)|<!--.*?-->|</?[a-zA-Z][^>]{0,200}>", "", text)
    text = re.sub(r"\[([^\]]+)\](\([^)]*\)|\[[^\]]*\])", r"\1", text)
    text = re.sub(r"\[\^[^\]]+\]", "", text)
    text = re.sub(r"(\*\*|__)(.+?)\1", r"\2", text)
    return re.sub(r"(?<!\w)([*_])(?=\S)(.+?)(?<=\S)\1(?!\w)", r"\2", text).strip()


BREAK = re.compile(r"\s*($|\||:?-{3,}|={3,}|\.\. |:\w+:|\[[^\]]+\]:)")
ITEM = re.compile(r"\s*(?:[-*+•]|\d{1,3}[.)])\s+(?:\[[ xX]\]\s+)?(?=\S)")


def prose_blocks(lines: list[str]) -> Iterator[tuple[str, list[tuple[int, str]]]]:
    """(heading, numbered lines) of each paragraph or list item; front matter, code, tables and rules are left out."""
    heading, fence, block = "", "", list[tuple[int, str]]()
    start = 0
    if lines and lines[0].strip() == "---":
        start = next((index + 1 for index, line in enumerate(lines[1:200], 1) if line.strip() in ("---", "...")), 0)
    for number, line in enumerate(lines[start:], start + 1):
        mark = re.match(r"\s*(```+|~~~+)", line)
        title = re.match(r"#{1,6}\s+(.*?)\s*#*$", line)
        if fence or mark or title or BREAK.match(line):
            if block:
                yield heading, block
                block = []
            if fence:
                fence = "" if mark and mark[1].startswith(fence) else fence
            elif mark:
                fence = mark[1]
            elif title:
                heading = plain(title[1])
            continue
        item = ITEM.match(line)
        if item and block:
            yield heading, block
            block = []
        block.append((number, line[item.end() if item else 0 :].lstrip(" >\t")))
    if block:
        yield heading, block


def locate(block: list[tuple[int, str]], text_from: int) -> int:
    """The line on which the sentence begins: lines are joined by one space, so offsets can be counted."""
    offset = 0
    for number, text in block:
        offset += len(text.strip()) + 1
        if offset > text_from:
            return number
    return block[-1][0]


def sentences_of(heading: str, block: list[tuple[int, str]]) -> Iterator[tuple[int, str, str]]:
    joined = " ".join(text.strip() for _, text in block)
    position = 0
    for raw in split_sentences(joined):
        position = max(joined.find(raw, position), 0)
        yield locate(block, position), plain(raw), heading
        position += len(raw)


def python_blocks(text: str) -> Iterator[tuple[str, list[tuple[int, str]]]]:
    """Docstrings, with their lines."""
    try:
        tree = ast.parse(text)
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return
    for node in ast.walk(tree):
        if not isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef) or not node.body:
            continue
        first = node.body[0]
        if isinstance(first, ast.Expr) and isinstance(first.value, ast.Constant) and isinstance(first.value.value, str):
            name = getattr(node, "name", "")
            lines = first.value.value.split("\n")
            for heading, block in prose_blocks(["", *lines]):
                yield heading or name, [(number + first.value.lineno - 2, line) for number, line in block]


def comment_blocks(lines: list[str], mark: str) -> Iterator[tuple[str, list[tuple[int, str]]]]:
    """Runs of comment lines."""
    pattern = re.compile(
        r"\s*(?://+[/!]?|/\*+!?|\*(?!/))\s?(.*?)(?:\*/)?\s*$" if mark == "//" else r"\s*#+(?!!)\s?(.*)$"
    )
    block: list[tuple[int, str]] = []
    for number, line in enumerate([*lines, ""], 1):
        match = pattern.match(line)
        if match and match[1].strip():
            block.append((number, match[1]))
        elif block:
            yield "", block
            block = []


def blocks_of(path: str, text: str) -> Iterator[tuple[str, list[tuple[int, str]]]]:
    extension = os.path.splitext(path)[1].lower()
    if extension in (".py", ".pyi"):
        return python_blocks(text)
    if extension in SLASH_CODE or extension in HASH_CODE:
        return comment_blocks(lines_of(text), "//" if extension in SLASH_CODE else "#")
    name = os.path.basename(path).lower()
    return prose_blocks(lines_of(text)) if extension in PROSE or name in ("readme", "changelog", "notes") else iter(())


def collect(source: Source) -> list[Sentence]:
    """Every sentence worth considering: at least four words (or eight characters without spaces), at most LONGEST."""
    sentences: list[Sentence] = []
    for path, text in source.files():
        if len(sentences) > MOST_SENTENCES:
            source.truncated = True
            break
        total = text.count("\n") + 1
        for heading, block in blocks_of(path, text):
            for line, words, title in sentences_of(heading, block):
                terms = terms_of(words)
                length = len(words.split()) + len(re.findall(r"[\u3040-\u9fff]", words)) // 2
                if len(terms) > 1 and 3 < length <= LONGEST:
                    sentences.append(Sentence(path, line, words, line / total, title, terms))
    return sentences


def weigh(sentences: list[Sentence]) -> list[dict[str, float]]:
    """For each sentence its normalised tf-idf vector."""
    having = Counter(term for sentence in sentences for term in sentence.terms)
    rarity = {term: math.log(1 + len(sentences) / amount) for term, amount in having.items()}
    vectors: list[dict[str, float]] = []
    for sentence in sentences:
        vector = {term: (1 + math.log(amount)) * rarity[term] for term, amount in sentence.terms.items()}
        length = math.sqrt(sum(value * value for value in vector.values())) or 1.0
        vectors.append({term: value / length for term, value in vector.items()})
    return vectors


def build_graph(vectors: list[dict[str, float]]) -> list[dict[int, float]]:
    """Similarity of every pair of sentences that share a term."""
    index: dict[str, list[tuple[int, float]]] = defaultdict(list)
    graph: list[dict[int, float]] = [{} for _ in vectors]
    for number, vector in enumerate(vectors):
        for term, value in vector.items():
            for other, weight in index[term]:
                graph[number][other] = graph[number].get(other, 0.0) + value * weight
            index[term].append((number, value))
    for number, near in enumerate(graph):
        for other in [other for other in near if other < number]:
            graph[other][number] = near[other]
    return graph


def rank(graph: list[dict[int, float]]) -> list[float]:
    """PageRank by repeated multiplication, scaled so that the best is 1."""
    size = len(graph)
    totals = [sum(near.values()) for near in graph]
    scores = [1.0 / size] * size
    for _ in range(60):
        following = [(1 - DAMPING) / size] * size
        for number, near in enumerate(graph):
            if totals[number]:
                share = DAMPING * scores[number] / totals[number]
                for other, weight in near.items():
                    following[other] += share * weight
        scores, before = following, scores
        if sum(abs(old - new) for old, new in zip(before, scores, strict=True)) < 1e-6:
            break
    best = max(scores) or 1.0
    return [score / best for score in scores]


def preselect(sentences: list[Sentence]) -> list[Sentence]:
    """At most CANDIDATES sentences, those nearest to the average of all, so that the graph stays small."""
    if len(sentences) <= CANDIDATES:
        return sentences
    vectors = weigh(sentences)
    centre: Counter[str] = Counter()
    for vector in vectors:
        centre.update(vector)
    value = [sum(weight * centre[term] for term, weight in vector.items()) for vector in vectors]
    kept = sorted(sorted(range(len(sentences)), key=lambda number: -value[number])[:CANDIDATES])
    return [sentences[number] for number in kept]


def score_sentences(sentences: list[Sentence], request: str) -> list[dict[int, float]]:
    vectors = weigh(sentences)
    graph = build_graph(vectors)
    wanted = terms_of(request)
    for sentence, central, vector in zip(sentences, rank(graph), vectors, strict=True):
        early = 0.15 * (1 - sentence.place)
        about = sum(vector.get(term, 0.0) for term in wanted)
        prose = 0.3 if os.path.splitext(sentence.path)[1].lower() in PROSE else 0.0
        odd = -0.2 if len(sentence.text.split()) < 6 or sentence.text.count("`") > 4 else 0.0
        sentence.score = central + early + 0.8 * about + prose + odd
    return graph


def select(sentences: list[Sentence], graph: list[dict[int, float]], options: argparse.Namespace) -> list[Sentence]:
    """The best sentences one after the other; what resembles a chosen one is marked down or left out."""
    chosen, words, left = list[int](), 0, set(range(len(sentences)))
    while left and len(chosen) < options.sentences:

        def worth(number: int) -> tuple[float, int]:
            repeated = max((graph[number].get(other, 0.0) for other in chosen), default=0.0)
            crowd = sum(sentences[other].path == sentences[number].path for other in chosen)
            return (sentences[number].score - 0.7 * repeated - 0.06 * crowd, -number)

        best = max(left, key=worth)
        left.discard(best)
        length = len(sentences[best].text.split())
        if words + length <= options.words and all(graph[best].get(other, 0.0) <= SIMILAR for other in chosen):
            chosen.append(best)
            words += length
    return [sentences[number] for number in sorted(chosen)]


def key_terms(sentences: list[Sentence], most: int = 12) -> list[str]:
    """The words that carry the text, as they are most often written."""
    amount, spread = Counter[str](), Counter[str]()
    written: dict[str, Counter[str]] = defaultdict(Counter)
    for sentence in sentences:
        spread.update(sentence.terms.keys())
        amount.update(sentence.terms)
        for word in re.findall(r"[^\W_]+", sentence.text):
            written[stem(word.casefold())][word.casefold()] += 1
    best = sorted(amount, key=lambda term: (-amount[term] * math.log(1 + spread[term]), term))
    return [written[term].most_common(1)[0][0] for term in best if term in written and len(term) > 2][:most]


def as_row(s: Sentence) -> dict[str, Any]:
    return {"text": s.text, "cite": f"{s.path}:{s.line}", "heading": s.heading, "score": round(s.score, 3)}


def summarize(source: Source, options: argparse.Namespace) -> dict[str, Any]:
    every = collect(source)
    sentences = preselect(every)
    picked: list[Sentence] = []
    if sentences:
        graph = score_sentences(sentences, f"{options.task} {options.keywords.replace(',', ' ')}")
        picked = select(sentences, graph, options)
    cited = " ".join(f"{sentence.text} [{sentence.path}:{sentence.line}]" for sentence in picked)
    cited = cited or f"No sentences found in {source.read} text files"
    return {
        "summary": cited + " (not all was read)" * source.truncated,
        "skill": "content-summarizer",
        "root": show(source.root),
        "sentences": [as_row(sentence) for sentence in picked],
        "key_terms": key_terms(every),
        "read_files": source.read,
        "considered_sentences": len(every),
        "skipped": source.skipped,
        "truncated": source.truncated,
    }


def print_text(result: dict[str, Any]) -> None:
    for sentence in result["sentences"]:
        print(f"- {sentence['text']} [{sentence['cite']}]")
    print(f"\n{len(result['sentences'])} of {result['considered_sentences']} sentences, {result['read_files']} files")
    print(f"Key terms: {', '.join(result['key_terms'])}")
    for row in result["skipped"]:
        print(f"skipped {row['path']}: {row['reason']}", file=sys.stderr)


def build_parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        description="Summarise a folder or file by its most central sentences, with cites."
    )
    parser.add_argument("--sentences", type=int, default=7, help="most sentences to pick (default: %(default)s)")
    parser.add_argument("--words", type=int, default=250, help="most words in all (default: %(default)s)")
    parser.add_argument("--task", default="", help="the request; sentences about it are preferred")
    parser.add_argument("--keywords", default="", help="words to prefer, separated by commas")
    add_source_options(parser)
    return parser


def main() -> int:
    use_utf8()
    names = ("--task", "--keywords", "--root", "--ignore")
    options = build_parser().parse_args(join_values(sys.argv[1:], names))
    options.sentences, options.words = max(1, options.sentences), max(1, options.words)
    if (source := open_source(options)) is None:
        return 2
    result = summarize(source, options)
    print(json.dumps(result, ensure_ascii=False, indent=2)) if options.as_json else print_text(result)
    return 0


if __name__ == "__main__":
    sys.exit(main())
