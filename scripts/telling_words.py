"""Make `src/metier/routing/subjects/telling_words.txt` from example requests of public skills: which words tell.

    uv run --with numpy --with torch python scripts/telling_words.py FOLDER/skills CLONES

FOLDER is the routing data: `tools.jsonl.gz`, `sources.tsv.gz` and `queries.dev.jsonl`. CLONES holds clones of
repositories of the sources, each as OWNER+NAME; a skill of another repository gives the requests of its description
only. Many public skills quote requests they answer. Each request is taken out of the text of its skill, the product
ranks the skills of catalogs for it, and words of requests are given factors with which the right skills rank higher.

Skills that answer a request of the data, and those like them, give no requests. The file holds word stems and factors,
and no text. Before it is written, the script leaves out every fifth skill and says what the factors of the others do
for its requests.
"""
# pyright: basic, reportMissingImports=false

import gzip
import hashlib
import json
import random
import re
import subprocess
import sys
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch

from metier.routing.index import IndexTables, build_tables
from metier.routing.names import normal_name
from metier.routing.ranking import COVERAGE_POWER, NAME_BONUS, rank_skills
from metier.routing.request import clip_request, read_request
from metier.routing.skill import RoutableSkill
from metier.routing.subjects.telling_words import FILE, FORMAT, read_telling_words
from metier.routing.word_lists import FUNCTION_WORDS
from metier.routing.words import split_words, stem

LARGE, SMALL = 10_000, 1_000
"""Sizes of the catalogs; at most half of the skills of a small one have requests."""
PLACES, WORDS = 40, 40
"""Skills and words of one request that are looked at."""
LEAST_REQUESTS = 3
"""Requests that a word stands in to get a factor."""
STIFFNESS = 1e-3
"""How strongly a factor is held at 1."""
ROUNDS, STEP, BATCH = 6, 0.02, 128
SHARPNESS = 4.0
LEAST_CHANGE = 2
"""In percent; a factor nearer to 1 is not kept."""

_USER = re.compile(
    r"\*{0,2}(?:User(?: request| asks?| says| input| prompt| query| message)?|Prompt|Request|Example prompt)"
    r"\*{0,2}\s*:\s*\*{0,2}\s*(?:\n>?\s*)?[\"“]?([^\n\"”]{15,400})",
    re.IGNORECASE,
)
_QUOTED = re.compile(r"[\"“]([^\"“”\n]{12,400})[\"”]")
_IN_DESCRIPTION = re.compile(r"[\"“]([^\"“”]{8,400})[\"”]|(?<![A-Za-z0-9])['‘]([^'‘’\"]{8,200})['’](?![A-Za-z0-9])")
_CODE = re.compile(r"^(```|~~~).*?^\1[ \t]*$", re.MULTILINE | re.DOTALL)
_FRONT_MATTER = re.compile(r"^---\n.*?\n---\n", re.DOTALL)
_NO_REQUEST = re.compile(r"[{}<>=$\\\[]|\(\)|::|https?://|^\W|\bX\b|\.\.\.")
_UNSPACED = re.compile("[\u3000-\uffff]")
_BEGINNINGS = frozenset(
    """
i i'm im i've my we we're our how can could what which why should is are does do where when help please give show tell
write create build make add fix review check find analyze analyse design set setup generate explain convert extract run
debug refactor optimize optimise plan draft summarize translate deploy migrate compare test implement update configure
improve audit scan search look turn get prepare track estimate rewrite research evaluate start organize schedule send
post monitor clean merge validate integrate use identify detect let investigate automate connect install document map
model predict calculate compute train profile rank rate suggest recommend brainstorm list read parse render plot
visualize simulate publish record log measure import export transcribe edit remove delete replace rename change walk
need want there the this these someone users customers
""".split()  # noqa: SIM905 - a list of 150 strings is harder to read
)
"""A quoted sentence of a body that begins otherwise is mostly no request."""

type Skill = dict[str, Any]


class Asked(NamedTuple):
    text: str
    skill: str


class Example(NamedTuple):
    """One request and the skills that rank highest for it in one catalog."""

    skill: str
    stems: list[str]
    weights: np.ndarray
    impacts: np.ndarray
    """Of each word on each skill."""
    pairs: np.ndarray
    others: np.ndarray
    """What does not depend on words, for each skill, as a logarithm."""
    right: int


def main(folder: Path, clones: Path) -> None:
    read_telling_words().clear()  # examples are ranked without factors
    skills, asked = _collect_requests(folder, clones)
    print(f"{len(asked):,} requests of {len({each.skill for each in asked}):,} skills")
    large = _find_examples(_draw_large(skills, asked), asked)
    small = [example for catalog in _draw_small(skills, asked) for example in _find_examples(catalog, asked)]
    _say_what_it_does(large, small)
    factors = _fit([*large, *small])
    kept = [f"{word} {factor}" for word, factor in sorted(factors.items()) if abs(factor - 100) >= LEAST_CHANGE]
    FILE.write_text("\n".join([f"telling words {FORMAT}", *kept, ""]), encoding="utf-8")


def _say_what_it_does(large: Sequence[Example], small: Sequence[Example]) -> None:
    factors = _fit([example for example in (*large, *small) if not _is_left_out(example)])
    for size, examples in ((SMALL, small), (LARGE, large)):
        left_out = [example for example in examples if _is_left_out(example)]
        before, after = _measure(left_out, {}), _measure(left_out, factors)
        print(f"{size:,} skills, {len(left_out):,} requests left out: {before:.1f} before, {after:.1f} after")


def _is_left_out(example: Example) -> bool:
    return hashlib.md5(example.skill.encode(), usedforsecurity=False).digest()[0] < 256 / 5


def _collect_requests(folder: Path, clones: Path) -> tuple[list[Skill], list[Asked]]:
    """The skills without the requests they quote, and these requests; no skill that the data asks for."""
    labelled = {
        skill
        for line in (folder / "queries.dev.jsonl").open(encoding="utf-8")
        for skill in json.loads(line)["relevant"]
    }
    with gzip.open(folder / "tools.jsonl.gz", "rt", encoding="utf-8") as lines:
        everything = [json.loads(line) for line in lines]
    wanted = [skill for skill in everything if skill["id"] in labelled]
    public = list(_leave_out_similar([skill for skill in everything if skill["id"] not in labelled], wanted))
    bodies = _read_bodies(folder, clones)
    skills: list[Skill] = []
    asked: list[Asked] = []
    for skill in public:
        cut, requests = _take_requests(skill, bodies.get(skill["id"], ""))
        skills.append(cut)
        asked += [Asked(request, skill["id"]) for request in requests]
    # A sentence that several skills quote is no request for one of them.
    quoted = Counter(each.text.lower() for each in asked)
    return skills, [each for each in asked if quoted[each.text.lower()] == 1]


def _leave_out_similar(skills: Iterable[Skill], wanted: Iterable[Skill]) -> Iterator[Skill]:
    names = {normal_name(skill["name"]) for skill in wanted}
    texts = [_find_stems(skill["description"]) for skill in wanted]
    having: defaultdict[str, list[int]] = defaultdict(list)
    for number, words in enumerate(texts):
        for word in words:
            having[word].append(number)
    for skill in skills:
        words = _find_stems(skill["description"])
        shared = Counter(number for word in words for number in having.get(word, ()))
        alike = any(2 * count > len(words | texts[number]) for number, count in shared.most_common(5))
        if not alike and normal_name(skill["name"]) not in names:
            yield skill


def _find_stems(text: str) -> set[str]:
    return {stem(word) for word in split_words(text) if word not in FUNCTION_WORDS}


def _read_bodies(folder: Path, clones: Path) -> dict[str, str]:
    with gzip.open(folder / "sources.tsv.gz", "rt", encoding="utf-8") as lines:
        rows = [line.rstrip("\n").split("\t") for line in lines][1:]
    by_repository: defaultdict[str, list[tuple[str, str]]] = defaultdict(list)
    for skill, repository, path, *_ in rows:
        by_repository[repository].append((skill, path))
    bodies: dict[str, str] = {}
    for repository, files in by_repository.items():
        clone = clones / repository.replace("/", "+")
        if clone.is_dir():
            bodies.update(_read_files(clone, files))
    return bodies


def _read_files(clone: Path, files: Sequence[tuple[str, str]]) -> Iterator[tuple[str, str]]:
    wanted = "".join(f"HEAD:{path}\n" for _, path in files)
    command = ["git", "-C", str(clone), "cat-file", "--batch"]
    data = subprocess.run(command, input=wanted.encode(), capture_output=True, check=True).stdout
    at = 0
    for skill, _ in files:
        end = data.index(b"\n", at)
        header, at = data[at:end], end + 1
        if not header.endswith(b" missing"):
            size = int(header.split()[-1])
            yield skill, _FRONT_MATTER.sub("", data[at : at + size].decode("utf-8", "replace"))
            at += size + 1


def _take_requests(skill: Skill, body: str) -> tuple[Skill, list[str]]:
    """The skill without the requests that it quotes, and some of these."""
    quoted = [first or second for first, second in _IN_DESCRIPTION.findall(skill["description"])]
    told = [text for text in map(_clean, quoted) if 4 <= len(text.split()) <= 70]
    said = [text for text in map(_clean, _USER.findall(body)) if _is_request(text)]
    cited = [text for text in map(_clean, _QUOTED.findall(_CODE.sub("\n", body))) if _is_request(text)]
    description, rest = skill["description"], body
    for text in {*told, *said, *cited}:
        description, rest = description.replace(text, " "), rest.replace(text, " ")
    words = skill.get("body_terms", "").split()
    if said or cited:
        left = set(split_words(rest))
        words = [word for word in words if left.issuperset(split_words(word))]
    chance = random.Random(skill["id"])
    chosen: dict[str, str] = {}
    for texts, most in ((said, 4), (told, 3), (cited, 3)):
        new = sorted({text for text in texts if text.lower() not in chosen})
        chosen.update((text.lower(), text) for text in chance.sample(new, min(most, len(new))))
    return {**skill, "description": description, "body_terms": " ".join(words)}, list(chosen.values())[:6]


def _clean(text: str) -> str:
    """Empty where it is code, a template or no English."""
    text = text.strip().rstrip(",").strip("*` ")
    return "" if _NO_REQUEST.search(text) or len(_UNSPACED.findall(text)) > 2 else text


def _is_request(text: str) -> bool:
    words = text.lower().split()
    return 5 <= len(words) <= 70 and words[0].strip(",'*") in _BEGINNINGS


def _draw_large(skills: Sequence[Skill], asked: Sequence[Asked]) -> list[Skill]:
    owners = {each.skill for each in asked}
    others = [skill for skill in skills if skill["id"] not in owners]
    random.Random(0).shuffle(others)
    return [*(skill for skill in skills if skill["id"] in owners), *others][:LARGE]


def _draw_small(skills: Sequence[Skill], asked: Sequence[Asked]) -> Iterator[list[Skill]]:
    """Every skill with a request is in one of the catalogs."""
    owners = {each.skill for each in asked}
    chance = random.Random(1)
    having = [skill for skill in skills if skill["id"] in owners]
    others = [skill for skill in skills if skill["id"] not in owners]
    chance.shuffle(having)
    for start in range(0, len(having), SMALL // 2):
        part = having[start : start + SMALL // 2]
        yield [*part, *chance.sample(others, SMALL - len(part))]


def _find_examples(catalog: Sequence[Skill], asked: Iterable[Asked]) -> list[Example]:
    """The requests of a catalog whose skill is among the first; no order of the others would show it."""
    index = build_tables(
        RoutableSkill(
            id=skill["id"],
            name=skill["name"],
            description=skill["description"],
            tags=tuple(skill["tags"]),
            body=skill["body_terms"],
        )
        for skill in catalog
    )
    numbers = {skill: number for number, skill in enumerate(index.ids)}
    stems = {key: word for word, key in index.words.items()}
    found = [_find_example(index, each, numbers=numbers, stems=stems) for each in asked if each.skill in numbers]
    return [example for example in found if example is not None]


def _find_example(
    index: IndexTables, asked: Asked, *, numbers: dict[str, int], stems: dict[int, str]
) -> Example | None:
    ranked = [each.skill_id for each in rank_skills(index, asked.text, PLACES) if not each.named]
    if asked.skill not in ranked:
        return None
    request = read_request(clip_request(asked.text), index)
    terms = request.terms[:WORDS]
    chosen = [numbers[skill] for skill in ranked]
    subjects = index.topics.reweigh(dict.fromkeys(chosen, 1.0), request.subjects)
    rarities = {term.key: index.postings.rarities[term.key] for term in request.terms}
    shares = [
        sum(rarities.get(key, 0.0) for key in index.name_words[number]) / (index.name_rarities[number] or 1.0)
        for number in chosen
    ]
    pairs = np.zeros(len(index), np.float32)
    for key, weight in request.pairs.items():
        start, end = index.pairs.starts[key], index.pairs.starts[key + 1]
        pairs[list(index.pairs.skills[start:end])] += weight * np.array(index.pairs.impacts[start:end])
    return Example(
        asked.skill,
        [stems[term.key] for term in terms],
        np.array([term.weight for term in terms], np.float32),
        np.array([np.array(index.find_row(term.key))[chosen] for term in terms], np.float32),
        pairs[chosen],
        np.log([subjects[number] * (1 + NAME_BONUS * share**2) for number, share in zip(chosen, shares, strict=True)]),
        ranked.index(asked.skill),
    )


class _Batch(NamedTuple):
    words: torch.Tensor
    weights: torch.Tensor
    impacts: torch.Tensor
    pairs: torch.Tensor
    others: torch.Tensor
    """Very small where there is no skill."""
    right: torch.Tensor


def _build_batch(examples: Sequence[Example], places: dict[str, int]) -> _Batch:
    count = len(examples)
    words = np.zeros((count, WORDS), np.int64)
    weights = np.zeros((count, WORDS), np.float32)
    impacts = np.zeros((count, WORDS, PLACES), np.float32)
    pairs = np.zeros((count, PLACES), np.float32)
    others = np.full((count, PLACES), -1e6, np.float32)
    for at, example in enumerate(examples):
        told, skills = example.impacts.shape
        words[at, :told] = [places.get(word, 0) for word in example.stems]
        weights[at, :told], impacts[at, :told, :skills] = example.weights, example.impacts
        pairs[at, :skills], others[at, :skills] = example.pairs, example.others
    right = np.array([example.right for example in examples])
    return _Batch._make(torch.from_numpy(array) for array in (words, weights, impacts, pairs, others, right))


def _score(batch: _Batch, factors: torch.Tensor) -> torch.Tensor:
    """As `ranking` does it, as logarithms. `factors` are logarithms, the first for words without one."""
    weights = batch.weights * torch.exp(factors[batch.words])
    sums = torch.einsum("nw,nws->ns", weights, batch.impacts) + batch.pairs
    covered = torch.einsum("nw,nws->ns", weights, (batch.impacts > 0).float()) / weights.sum(1, keepdim=True)
    return sums.clamp(min=1e-4).log() + COVERAGE_POWER * covered.clamp(min=1e-3).log() + batch.others


def _fit(examples: Sequence[Example]) -> dict[str, int]:
    """A factor for each word, in percent."""
    torch.manual_seed(0)
    torch.set_num_threads(1)
    counts = Counter(word for example in examples for word in set(example.stems))
    words = sorted(word for word, count in counts.items() if count >= 2 * LEAST_REQUESTS)  # in two catalogs each
    places = {word: at for at, word in enumerate(words, start=1)}
    factors = torch.zeros(len(words) + 1, requires_grad=True)
    sharpness = torch.tensor(SHARPNESS, requires_grad=True)
    descent = torch.optim.Adam([factors, sharpness], lr=STEP)
    for _ in range(ROUNDS):
        for chosen in torch.randperm(len(examples)).split(BATCH):
            batch = _build_batch([examples[number] for number in chosen.tolist()], places)
            known = torch.cat([torch.zeros(1), factors[1:]])
            loss = torch.nn.functional.cross_entropy(sharpness * _score(batch, known), batch.right)
            descent.zero_grad()
            (loss + STIFFNESS * (factors**2).sum()).backward()
            descent.step()
    return {word: round(100 * np.exp(factors[at].item())) for word, at in places.items()}


def _measure(examples: Sequence[Example], factors: dict[str, int]) -> float:
    """Requests whose skill is among the first eight, of 100."""
    words = sorted(factors)
    batch = _build_batch(examples, {word: at for at, word in enumerate(words, start=1)})
    scores = _score(batch, torch.tensor([1.0, *(factors[word] / 100 for word in words)]).log())
    better = (scores > scores.gather(1, batch.right[:, None])).sum(1)
    return 100 * (better < 8).float().mean().item()


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]))
