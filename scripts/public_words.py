"""Make `src/metier/routing/subjects/public_words.bin` from the texts of public skills: the subjects of their words.

    uv run --with numpy --with scipy python scripts/public_words.py FOLDER/skills

FOLDER is the routing data: `tools.jsonl.gz` with name, description, tags and words of the body of each skill, all under
permissive licences, and `queries.dev.jsonl`. Skills that answer one of these requests are left out, so that a figure
measured with the requests says nothing about texts that the table was made from. The file holds word stems and rounded
numbers, and no text. The same data gives the same file.
"""
# pyright: basic, reportMissingImports=false

import gzip
import json
import math
import sys
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

from metier.routing.clauses import leave_out_exclusions
from metier.routing.subjects.public_words import FILE, FORMAT
from metier.routing.word_lists import FUNCTION_WORDS
from metier.routing.words import split_words, stem

SEEN, WORDS = 20_000, 10_000
"""Words that subjects are found with, and those of them that are kept."""
NUMBERS = 96
BODY_SHARE = 0.3
"""What a word of the body counts beside one of the description, while subjects are looked for."""
BODY_ONLY = 0.8
"""What a skill counts towards a word being common that has it in its body alone."""
ZERO, MOST = 128, 127
"""A number from -127 to 127 is kept as one byte that is never negative."""


type Skill = tuple[Counter[str], Counter[str]]
"""How often each word stands in name, description and tags, and how often in the body."""


def main(folder: Path) -> None:
    skills = list(_read_skills(folder))
    common = Counter()
    for told, body in skills:
        common.update(dict.fromkeys(told, 1.0))
        common.update(dict.fromkeys(body.keys() - told.keys(), BODY_ONLY))
    words = sorted(sorted(common), key=common.__getitem__, reverse=True)[:SEEN]
    numbers = _find_subjects(skills, {word: at for at, word in enumerate(words)}, [common[word] for word in words])
    header = f"public words {FORMAT} {NUMBERS}\n"
    FILE.write_bytes(header.encode() + "\n".join(words[:WORDS]).encode() + b"\n\n" + numbers)


def _read_skills(folder: Path) -> Iterator[Skill]:
    with (folder / "queries.dev.jsonl").open(encoding="utf-8") as lines:
        asked = {skill for line in lines for skill in json.loads(line)["relevant"]}
    with gzip.open(folder / "tools.jsonl.gz", "rt", encoding="utf-8") as lines:
        for skill in map(json.loads, lines):
            if skill["id"] not in asked:
                told = [skill["name"], leave_out_exclusions(skill["description"]), *skill.get("tags", ())]
                yield _count(" . ".join(told)), _count(skill.get("body_terms", ""))


def _count(text: str) -> Counter[str]:
    return Counter(stem(word) for word in split_words(text) if _tells(word))


def _tells(word: str) -> bool:
    """Numbers and single letters have no subject."""
    return len(word) > 1 and not word.isdigit() and word not in FUNCTION_WORDS


def _find_subjects(skills: list[Skill], places: dict[str, int], counts: list[float]) -> bytes:
    """Latent semantic analysis: words that stand in the same skills get similar numbers, rare words larger ones."""
    import numpy as np
    import scipy.sparse as sparse
    from scipy.sparse.linalg import svds

    rarity = np.array([math.log(len(skills) / count) for count in counts])
    rows, columns, values = [], [], []
    for number, (told, body) in enumerate(skills):
        for word in sorted(told.keys() | body.keys()):
            if word in places:
                rows.append(number)
                columns.append(places[word])
                values.append(math.log(1 + told[word] + BODY_SHARE * body[word]) * rarity[places[word]])
    matrix = sparse.csr_matrix((values, (rows, columns)), shape=(len(skills), len(places)))
    lengths = np.sqrt(np.asarray(matrix.multiply(matrix).sum(axis=1)).ravel())
    _, strengths, subjects = svds(sparse.diags(1 / np.maximum(lengths, 1e-9)) @ matrix, k=NUMBERS, random_state=0)
    # A subject has no direction of its own, and rounding finds one or the other: the word it tells most about decides.
    subjects *= np.sign(subjects[np.arange(NUMBERS), np.abs(subjects).argmax(axis=1)])[:, None]
    vectors = (subjects.T * np.sqrt(strengths))[:WORDS]
    vectors *= (rarity[:WORDS] / np.maximum(np.linalg.norm(vectors, axis=1), 1e-9))[:, None]
    vectors *= MOST / np.percentile(np.abs(vectors), 99.9)
    return (np.clip(np.round(vectors), -MOST, MOST) + ZERO).astype(np.uint8).tobytes()


if __name__ == "__main__":
    main(Path(sys.argv[1]))
