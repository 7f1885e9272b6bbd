# /// script
# requires-python = ">=3.12"
# dependencies = []
# ///
"""Split a folder of notes into numbered passages and keep those that say most about a question. Reads only."""

import argparse
import json
import math
import os
import re
import sys
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

TEXT = {".md", ".markdown", ".txt", ".rst"}
WORD = re.compile(r"[^\W_]{3,}")
COMMON = frozenset({"the", "and", "for", "are", "was", "were", "that", "this", "with", "from", "what", "which", "how"})
MAX_BYTES = 2 * 1024 * 1024
MAX_PASSAGES = 40


def list_sources(folder: Path) -> list[Path]:
    found = []
    for place, folders, files in os.walk(folder):
        folders[:] = sorted(name for name in folders if not name.startswith("."))
        paths = [Path(place, name) for name in sorted(files)]
        found += [path for path in paths if path.suffix.lower() in TEXT and not path.is_symlink()]
    return [path for path in found if path.stat().st_size <= MAX_BYTES]


def split_passages(text: str) -> Iterator[tuple[int, str, str]]:
    """Line, topic and text of each paragraph; headings are topics."""
    topic, lines, start = "", [], 1
    for number, line in enumerate([*text.splitlines(), ""], start=1):
        heading = re.match(r"#{1,6}\s+(.+)", line)
        if line.strip() and not heading:
            start = start if lines else number
            lines.append(line.strip())
            continue
        if lines:
            yield start, topic, " ".join(lines)
            lines = []
        topic = heading[1].strip() if heading else topic


def find_words(text: str) -> Counter[str]:
    """Stems, roughly: `tides` and `tide` are one word."""
    words = (word.lower() for word in WORD.findall(text))
    return Counter(re.sub(r"(?<=\w{3})(?:ing|ed|es|s|e|al)$", "", word) for word in words if word not in COMMON)


def rank(passages: list[dict[str, object]], question: str) -> list[dict[str, object]]:
    """BM25 over passages and their topics; those with no word of the question are left out."""
    texts = [find_words(f"{each['topic']} {each['text']}") for each in passages]
    average = sum(map(Counter.total, texts)) / max(1, len(texts))
    for passage, words in zip(passages, texts, strict=True):
        score = 0.0
        for word in find_words(question):
            having = sum(word in other for other in texts)
            weight = math.log(1 + (len(texts) - having + 0.5) / (having + 0.5))
            score += weight * words[word] * 2.2 / (words[word] + 1.2 * (0.25 + 0.75 * words.total() / average))
        passage["score"] = round(score, 3)
    return [each for each in passages if each["score"] > 0]


def read_request(text: str, name: str) -> str:
    match = re.search(rf'\b{name}="([^"]*)"', text)
    return match[1].strip() if match else ""


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--root", type=Path, default=Path.cwd(), help="the workspace")
    parser.add_argument("--folder", default="", help="the folder of notes below it; else 'sources'")
    parser.add_argument("--question", default="", help="what is to be answered")
    parser.add_argument("--request", default="", help='words of a task; question="…" and folder="…" in them count')
    parser.add_argument("--out", type=Path, required=True, help="the JSON file to write")
    parser.add_argument("--json", action="store_true", help="print one JSON object and nothing else")
    options = parser.parse_args()
    question = options.question or read_request(options.request, "question")
    named = options.folder or read_request(options.request, "folder") or "sources"
    folder = (options.root / named).resolve()
    if not question or not folder.is_dir() or not folder.is_relative_to(options.root.resolve()):
        sys.stderr.write(f"There is no question, or {named!r} is no folder of the workspace\n")
        return 1
    sources, passages = [], []
    for number, path in enumerate(list_sources(folder), start=1):
        name = path.relative_to(options.root.resolve()).as_posix()
        sources.append({"id": f"S{number}", "file": name})
        found = split_passages(path.read_text("utf-8", "replace"))
        for place, (line, topic, text) in enumerate(found, start=1):
            each = {"id": f"S{number}.{place}", "source": name, "line": line, "topic": topic or path.stem, "text": text}
            passages.append(each)
    kept = sorted(rank(passages, question), key=lambda each: -each["score"])[:MAX_PASSAGES]
    if not kept:
        sys.stderr.write(f"None of {len(passages)} passages in {len(sources)} sources has a word of the question\n")
        return 1
    told = {"question": question, "sources": sources, "passages": kept}
    options.out.parent.mkdir(parents=True, exist_ok=True)
    options.out.write_text(json.dumps(told, ensure_ascii=False, indent=1) + "\n", "utf-8")
    used = len({each["source"] for each in kept})
    summary = f"{len(kept)} of {len(passages)} passages from {used} of {len(sources)} sources speak of the question"
    result = {"summary": summary, "artifacts": [str(options.out)], "best": kept[0]["id"]}
    sys.stdout.write((json.dumps(result, ensure_ascii=False) if options.json else summary) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
