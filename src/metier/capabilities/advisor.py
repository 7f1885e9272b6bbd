"""A model as advisor of a skill: a limited number of questions, and answers that are validated before use."""

import hashlib
import json
import re
from collections.abc import Awaitable, Callable, Iterator
from fnmatch import fnmatchcase
from pathlib import PurePosixPath
from typing import Protocol

from msgspec import Struct, field
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
"""Questions per turn. Each may be repeated `max_fix_iterations` times until its answer is usable."""
MAX_PROMPT_CHARACTERS = 100_000
_PATH_KEYS = frozenset({"path", "file", "filename", "file_path", "target", "destination"})
_CODE_KEYS = frozenset({"code", "python", "source", "source_code", "impl"})
_CONTENT_KEYS = ("content", "text", "body", "source", "code")
_INSTRUCTION = (
    "You advise a program. It validates your answer and decides; your answer executes nothing. "
    "Respond with one JSON value only."
)
_FENCE = re.compile(r"^```(?:json)?\s*\n(?P<text>.*?)\n```\s*$", re.DOTALL)


type SaveAdvice = Callable[[str, JsonValue], Awaitable[None]]


class Advisor(Protocol):
    """Answers questions of skills. Raises `ProviderError` if it cannot."""

    async def ask(self, prompt: str, schema: Schema | None) -> str: ...


class Bill(Struct):
    """Costs of advice since the last payment. Concurrent skills share it; the total stays correct."""

    facts: FactBook
    _total: Spent = field(default_factory=Spent)

    def add(self, reply: ModelReply, *, asked: str) -> None:
        self._total = Spent(
            input_tokens=self._total.input_tokens + reply.usage.input_tokens,
            output_tokens=self._total.output_tokens + reply.usage.output_tokens,
            cost_usd=self._total.cost_usd + reply_cost(reply, requested=asked, facts=self.facts),
        )

    def pay(self) -> Spent | None:
        """Return the costs and reset them; None if no advice was requested."""
        # Read and reset in one statement without `await`, so that concurrent steps pay each cost once.
        owed, self._total = self._total, Spent()
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
    """Validates advice: JSON that matches the schema, stays in the contract's scope and is safe to run."""

    contract: SkillContract
    schema: Schema | None = None

    def list_problems(self, value: JsonValue) -> tuple[str, ...]:
        """Return every reason not to use an answer."""
        if problem := _check_json(value):
            return (problem,)
        return (*self._check_schema(value), *self._check_scope(value), *_check_code(value))

    def _check_schema(self, value: JsonValue) -> list[str]:
        if self.schema is None:
            return []
        try:
            wrong = SchemaCheck("advice", self.schema).get_error(value)
        except UsageError as error:
            wrong = error.message
        return [f"It does not match the schema: {wrong}"] if wrong else []

    def _check_scope(self, value: JsonValue) -> Iterator[str]:
        """Report paths outside of those that the contract lets the skill write to."""
        for node in _walk(value):
            for key, path in node.items():
                if key.lower() in _PATH_KEYS and isinstance(path, str) and not self._is_in_scope(path):
                    yield f"Path {path!r} is outside the contract's paths"
                elif key.lower() in _PATH_KEYS and _has_content(node) and not self._may_write():
                    yield f"It writes to {path!r}, but the contract has no writes_files"

    def _is_in_scope(self, path: str) -> bool:
        pure = PurePosixPath(path.replace("\\", "/"))
        # The last one is a drive of Windows, which is not absolute on POSIX.
        if pure.is_absolute() or ".." in pure.parts or re.match(r"^[A-Za-z]:", path):
            return False
        patterns = self.contract.side_effects.paths
        return not patterns or any(fnmatchcase(str(pure), pattern) for pattern in patterns)

    def _may_write(self) -> bool:
        return "writes_files" in self.contract.side_effects.kinds


class TurnQuestions(Struct):
    """One turn's questions to the advisor. Invalid answers are requested again, up to the contract's limit."""

    advisor: Advisor
    contract: SkillContract
    known: dict[str, JsonValue] = field(default_factory=dict[str, JsonValue])
    """Advice from an earlier attempt at this turn, by `digest_question`."""
    save: SaveAdvice | None = None
    """Stores advice as soon as it is used."""
    calls: int = 0
    fixes: int = 0
    report: list[str] = field(default_factory=list[str])

    async def advise(self, prompt: str, schema: JsonValue) -> Advice:
        wanted = schema if isinstance(schema, dict) else None
        digest = digest_question(prompt, wanted)
        # Before the limit, because an answer that is stored costs no question.
        if digest in self.known:
            return Advice(value=self.known[digest])
        if self.calls >= MAX_ADVICE_CALLS:
            return self._refuse(f"The turn asked more than {MAX_ADVICE_CALLS} questions")
        self.calls += 1
        try:
            advice = await self._ask_until_usable(prompt[:MAX_PROMPT_CHARACTERS], wanted)
        except ProviderError as error:
            # Advice is optional: the skill continues without it, as it does without a model.
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
            # Built from the first prompt, so that it does not grow with every attempt.
            question = f"{prompt}\n\nYour last answer could not be used: {'; '.join(problems)}. Answer again."
        return self._refuse(f"No usable advice in {self.contract.max_fix_iterations + 1} attempts")

    def _refuse(self, why: str) -> Advice:
        self.report.append(why)
        return Advice(refused=why)


def digest_question(prompt: str, schema: Schema | None) -> str:
    return hashlib.sha256(json.dumps([prompt, schema], sort_keys=True).encode()).hexdigest()[:32]


def parse_advice(text: str) -> JsonValue | NotJson:
    """Parse any JSON value; an object may have text around it."""
    bare = _FENCE.match(text.strip())
    try:
        value: JsonValue = json.loads(bare["text"] if bare else text)
    except (ValueError, RecursionError):
        return recover_object(text)
    return value


def _check_json(value: JsonValue) -> str:
    try:
        # Python's parser also accepts NaN and Infinity, which JSON does not have.
        json.dumps(value, allow_nan=False)
    except (TypeError, ValueError, RecursionError) as error:
        return f"It is not valid JSON: {error}"
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
    """Report Python code that would not pass the check of the skill's own code."""
    for node in _walk(value):
        path = next((str(node[key]) for key in node if key.lower() in _PATH_KEYS), "")
        keys = [key for key in node if key.lower() in _CODE_KEYS or (path.endswith(".py") and key in _CONTENT_KEYS)]
        for text in (node[key] for key in keys):
            if isinstance(text, str):
                errors = [problem for problem in check_source(text) if problem.severity == "error"]
                yield from (f"Code line {problem.line}: {problem.message}" for problem in errors)
