"""A model as advisor of a skill: asked a bounded number of times, its answer checked before anything acts on it."""

import hashlib
import json
import re
from collections.abc import Awaitable, Callable, Iterator
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from pathlib import PurePosixPath
from typing import Protocol

from msgspec import Struct
from pydantic import JsonValue

from metier.capabilities.contract import Schema, SkillContract
from metier.capabilities.impl.process import Advice
from metier.capabilities.sync_check import check_source
from metier.context.json_text import NotJson, recover_object
from metier.errors import ProviderError, UsageError
from metier.messages import ModelReply, Spent, TextPart, user
from metier.providers.base import ModelRequest, Provider, SystemBlock
from metier.providers.facts import FactBook, reply_cost
from metier.tools.schemas import SchemaCheck

MAX_ADVICE_CALLS = 8
"""Questions of one turn; each may take `max_fix_iterations` more to get an answer that can be used."""
MAX_PROMPT_CHARACTERS = 100_000
_PATH_KEYS = frozenset({"path", "file", "filename", "file_path", "target", "destination"})
_CODE_KEYS = frozenset({"code", "python", "source", "source_code", "impl"})
_CONTENT_KEYS = ("content", "text", "body", "source", "code")
_INSTRUCTION = (
    "You advise a program. It checks your answer and decides; nothing you say is carried out by itself. "
    "Answer with one JSON value and nothing else."
)
_FENCE = re.compile(r"^```(?:json)?\s*\n(?P<text>.*?)\n```\s*$", re.DOTALL)


type SaveAdvice = Callable[[str, JsonValue], Awaitable[None]]


class Advisor(Protocol):
    """Answers questions of skills. Raises `ProviderError` when it cannot."""

    async def ask(self, prompt: str, schema: Schema | None) -> str: ...


@dataclass(slots=True)
class Bill:
    """What advice cost since the last payment. Two skills at once share it: the sum is right, whichever pays."""

    facts: FactBook
    _sum: Spent = field(default_factory=Spent)

    def add(self, reply: ModelReply, *, asked: str) -> None:
        self._sum = Spent(
            input_tokens=self._sum.input_tokens + reply.usage.input_tokens,
            output_tokens=self._sum.output_tokens + reply.usage.output_tokens,
            cost_usd=self._sum.cost_usd + reply_cost(reply, requested=asked, facts=self.facts),
        )

    def pay(self) -> Spent | None:
        """What is owed, which is nothing afterwards; None where no advice was asked for."""
        owed, self._sum = self._sum, Spent()
        return owed if owed != Spent() else None


class ProviderAdvisor(Struct, frozen=True, kw_only=True):
    """Asks the model of the run."""

    provider: Provider
    model: str
    max_tokens: int = 4096
    timeout_seconds: float = 120.0
    bill: Bill | None = None

    async def ask(self, prompt: str, schema: Schema | None) -> str:
        request = ModelRequest(
            model=self.model,
            messages=(user(prompt),),
            system=(SystemBlock(_INSTRUCTION),),
            max_tokens=self.max_tokens,
            tool_choice="none",
            response_schema=schema,
            timeout_seconds=self.timeout_seconds,
        )
        reply = await self.provider.reply(request)
        if self.bill is not None:
            self.bill.add(reply, asked=self.model)
        return "".join(part.text for part in reply.parts if isinstance(part, TextPart))


class AdvisorOutputValidator(Struct, frozen=True, kw_only=True):
    """Whether something a model said may be used: JSON, of the schema, inside the scope, safe to run."""

    contract: SkillContract
    schema: Schema | None = None

    def list_problems(self, value: JsonValue) -> tuple[str, ...]:
        """Every reason not to use it; nothing when it may be used."""
        unsayable = _get_unsayable(value)
        if unsayable:
            return (unsayable,)
        return (*self._check_schema(value), *self._check_scope(value), *_check_code(value))

    def _check_schema(self, value: JsonValue) -> list[str]:
        if self.schema is None:
            return []
        try:
            wrong = SchemaCheck("advice", self.schema).get_error(value)
        except UsageError as error:
            wrong = error.message
        return [f"It is not of the schema: {wrong}"] if wrong else []

    def _check_scope(self, value: JsonValue) -> Iterator[str]:
        """What it names as a file must lie where the contract lets the skill write."""
        for node in _walk(value):
            for key, path in node.items():
                if key.lower() in _PATH_KEYS and isinstance(path, str) and not self._is_in_scope(path):
                    yield f"Path {path!r} is outside what the contract allows"
                elif key.lower() in _PATH_KEYS and _has_content(node) and not self._may_write():
                    yield f"It wants to write {path!r}, and the contract has no writes_files"

    def _is_in_scope(self, path: str) -> bool:
        pure = PurePosixPath(path.replace("\\", "/"))
        if pure.is_absolute() or ".." in pure.parts or re.match(r"^[A-Za-z]:", path):
            return False
        patterns = self.contract.side_effects.paths
        return not patterns or any(fnmatchcase(str(pure), pattern) for pattern in patterns)

    def _may_write(self) -> bool:
        return "writes_files" in self.contract.side_effects.kinds


@dataclass(slots=True)
class TurnQuestions:
    """The questions of one turn to the advisor: answers are checked and asked for again, up to the contract's limit."""

    advisor: Advisor
    contract: SkillContract
    known: dict[str, JsonValue] = field(default_factory=dict[str, JsonValue])
    """Advice that an earlier attempt at this turn got, by `digest_question`: paid for once, used again."""
    save: SaveAdvice | None = None
    """Stores advice as soon as it is used."""
    calls: int = 0
    fixes: int = 0
    report: list[str] = field(default_factory=list[str])

    async def advise(self, prompt: str, schema: JsonValue) -> Advice:
        wanted = schema if isinstance(schema, dict) else None
        digest = digest_question(prompt, wanted)
        if digest in self.known:
            return Advice(value=self.known[digest])
        if self.calls >= MAX_ADVICE_CALLS:
            return self._refuse(f"More than {MAX_ADVICE_CALLS} questions in one turn")
        self.calls += 1
        try:
            advice = await self._ask_until_usable(prompt[:MAX_PROMPT_CHARACTERS], wanted)
        except ProviderError as error:
            # Advice is not needed to continue: the skill does without, as it does where there is no model.
            self.report.append(f"No advice: {error.message}")
            return Advice()
        if not advice.refused and self.save is not None:
            await self.save(digest, advice.value)
        return advice

    async def _ask_until_usable(self, prompt: str, schema: Schema | None) -> Advice:
        validator = AdvisorOutputValidator(contract=self.contract, schema=schema)
        question = prompt
        for attempt in range(self.contract.max_fix_iterations + 1):
            value = parse_advice(await self.advisor.ask(question, schema))
            problems = (value.message,) if isinstance(value, NotJson) else validator.list_problems(value)
            if not problems and not isinstance(value, NotJson):
                return Advice(value=value)
            self.report.append(f"Attempt {attempt + 1}: {'; '.join(problems)}")
            self.fixes += attempt < self.contract.max_fix_iterations
            question = f"{prompt}\n\nYour last answer could not be used: {'; '.join(problems)}. Answer again."
        return self._refuse(f"No usable advice in {self.contract.max_fix_iterations + 1} attempts")

    def _refuse(self, why: str) -> Advice:
        self.report.append(why)
        return Advice(refused=why)


def digest_question(prompt: str, schema: Schema | None) -> str:
    return hashlib.sha256(json.dumps([prompt, schema], sort_keys=True).encode()).hexdigest()[:32]


def parse_advice(text: str) -> JsonValue | NotJson:
    """Any JSON value; an object also from text around it."""
    bare = _FENCE.match(text.strip())
    try:
        value: JsonValue = json.loads(bare["text"] if bare else text)
    except (ValueError, RecursionError):
        return recover_object(text)
    return value


def _get_unsayable(value: JsonValue) -> str:
    try:
        json.dumps(value, allow_nan=False)
    except (TypeError, ValueError, RecursionError) as error:
        return f"It cannot be said in JSON: {error}"
    return ""


def _walk(value: JsonValue) -> Iterator[dict[str, JsonValue]]:
    match value:
        case dict():
            yield value
            for item in value.values():
                yield from _walk(item)
        case list():
            for item in value:
                yield from _walk(item)
        case _:
            return


def _has_content(node: dict[str, JsonValue]) -> bool:
    return any(isinstance(node.get(key), str) for key in _CONTENT_KEYS)


def _check_code(value: JsonValue) -> Iterator[str]:
    """Python in it must pass the same check as the skill's own code."""
    for node in _walk(value):
        path = next((str(node[key]) for key in node if key.lower() in _PATH_KEYS), "")
        keys = [key for key in node if key.lower() in _CODE_KEYS or (path.endswith(".py") and key in _CONTENT_KEYS)]
        for text in (node[key] for key in keys):
            if isinstance(text, str):
                errors = [finding for finding in check_source(text) if finding.severity == "error"]
                yield from (f"Code line {finding.line}: {finding.message}" for finding in errors)
