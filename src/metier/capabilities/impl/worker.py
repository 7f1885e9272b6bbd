"""The process in which one turn of a skill runs: `python -I -m metier.capabilities.impl.worker`.

It reads a request from standard input and writes a reply to its original standard output, one JSON line each; in
between it may ask for advice. The skill's own output goes to standard error. Standard library only, to start fast.
"""

import dataclasses
import importlib
import json
import os
import sys
import traceback
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import BinaryIO, cast

from metier.capabilities.impl.context import MAX_ANSWER_BYTES, Json, SkillContext
from metier.capabilities.impl.guard import Guard, Permitted, UndeclaredEffect
from metier.tools.process.json_lines_worker import open_private_package, take_streams

MODULE = "impl"
ENTRY = "execute"
_MAX_TRACE = 2_000


class AdviceRefused(Exception):
    """No usable advice; the turn ends. The report of the response has the attempts."""


class AdviceNotAllowed(Exception):
    """A deterministic skill asked for advice."""


def main() -> None:
    # Taken over before any code of the skill runs: what it prints must not mix with the protocol.
    requests, replies = take_streams()
    request = cast("dict[str, Json]", json.loads(requests.readline()))
    reply = _answer(request, _Conversation(requests, replies))
    answer = json.dumps(reply).encode() + b"\n"
    if len(answer) > MAX_ANSWER_BYTES:
        reply = {"kind": "answer", **_refuse_size(len(answer))}
        answer = json.dumps(reply).encode() + b"\n"
    _save(reply, str(request.get("reply_file", "")), str(request.get("reply_secret", "")))
    replies.write(answer)
    replies.flush()
    # Not sys.exit, which would wait for threads that the skill left running.
    os._exit(0)


def _refuse_size(size: int) -> dict[str, Json]:
    message = f"The answer has {size} bytes, more than the limit of {MAX_ANSWER_BYTES}: write large data to an artifact"
    return {"error": "answer_too_large", "message": message}


def _save(reply: dict[str, Json], file: str, secret: str) -> None:
    """Save the reply atomically before it is sent; see `capabilities.impl.process`."""
    if not file:
        return
    try:
        descriptor = os.open(f"{file}.part", os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
        with os.fdopen(descriptor, "wb") as stream:
            stream.write(json.dumps({"secret": secret, "reply": reply}).encode())
            stream.flush()
            # Before the rename: otherwise a power cut could leave the final name with an empty file.
            os.fsync(stream.fileno())
        Path(f"{file}.part").replace(file)
        # The rename survives a power cut only once the folder is synced.
        folder = os.open(Path(file).parent, os.O_RDONLY)
        os.fsync(folder)
        os.close(folder)
    except OSError:
        # A full disk: the reply is still sent, only the copy for a crash is missing.
        return


@dataclasses.dataclass(slots=True)
class _Conversation:
    requests: BinaryIO
    replies: BinaryIO
    refused: str = ""

    def advise(self, prompt: str, schema: dict[str, Json] | None) -> Json:
        question = json.dumps({"kind": "advise", "prompt": prompt, "schema": schema})
        self.replies.write(question.encode() + b"\n")
        self.replies.flush()
        answer = cast("dict[str, Json]", json.loads(self.requests.readline()))
        if answer.get("refused"):
            self.refused = str(answer["refused"])
            raise AdviceRefused(self.refused)
        return answer.get("value")


def _answer(request: dict[str, Json], conversation: _Conversation) -> dict[str, Json]:
    guard = Guard(_read_permitted(cast("dict[str, Json]", request["permitted"])))
    context = _build_context(cast("dict[str, Json]", request["context"]), conversation)
    folder = Path(str(request["folder"]))
    try:
        reply = _call(folder, context, guard)
    except (Exception, SystemExit) as error:  # noqa: BLE001  a skill's code may raise anything
        reply = {"error": _get_code(error), "message": _describe(error)}
    if conversation.refused:
        reply = {"error": "advice_refused", "message": conversation.refused}
    # Also if the skill caught the exception and returned an answer.
    if guard.violations:
        reply = {"error": "undeclared_effect", "message": guard.violations[0]}
    return {"kind": "answer", "remembered": context.remembered, **reply}


def _call(folder: Path, context: SkillContext, guard: Guard) -> dict[str, Json]:
    package = open_private_package(folder)
    # Before the import, because the module's top level is the skill's code too.
    guard.install()
    execute = getattr(importlib.import_module(f"{package}.{MODULE}"), ENTRY, None)
    if not callable(execute):
        return {"error": "invalid_impl", "message": f"'{MODULE}.py' has no function {ENTRY!r}"}
    return {"response": _as_json(cast("Callable[[SkillContext], object]", execute)(context))}


def _as_json(returned: object) -> Json:
    """Convert a mapping, a dataclass or a pydantic model. Raises `TypeError` or `ValueError`."""
    dump = cast("Callable[..., object] | None", getattr(returned, "model_dump", None))
    if callable(dump):
        returned = dump(mode="json", exclude_defaults=True)
    elif dataclasses.is_dataclass(returned) and not isinstance(returned, type):
        returned = dataclasses.asdict(returned)
    if not isinstance(returned, Mapping):
        raise TypeError(f"execute returned {type(returned).__name__}, not a mapping")
    answer = dict(cast("Mapping[str, object]", returned))
    return cast("Json", json.loads(json.dumps(answer, allow_nan=False)))


def _build_context(fields: dict[str, Json], conversation: _Conversation) -> SkillContext:
    mode = str(fields.pop("execution_mode"))

    def refuse(_prompt: str, _schema: dict[str, Json] | None) -> Json:
        conversation.refused = "A deterministic skill asked for advice"
        raise AdviceNotAllowed(conversation.refused)

    paths = {name: Path(str(fields.pop(name))) for name in ("workspace", "artifacts")}
    problems = tuple(str(problem) for problem in cast("list[Json]", fields.pop("problems")))
    can_advise = bool(fields["can_advise"])
    ask = refuse if mode == "deterministic" else conversation.advise if can_advise else None
    return SkillContext(**fields, **paths, problems=problems, ask=ask)  # pyright: ignore[reportArgumentType]  the keys are those of `process._build_request`


def _read_permitted(fields: dict[str, Json]) -> Permitted:
    lists = {name: tuple(cast("list[str]", fields[name])) for name in ("write_below", "workspace_patterns")}
    return Permitted(
        network=bool(fields["network"]), programs=bool(fields["programs"]), workspace=str(fields["workspace"]), **lists
    )


def _get_code(error: BaseException) -> str:
    return "undeclared_effect" if isinstance(error, UndeclaredEffect) else "impl_raised"


def _describe(error: BaseException) -> str:
    """Return the error with its line in `impl.py`."""
    sys.stderr.write("".join(traceback.format_exception(error))[-_MAX_TRACE:])
    frames = [frame for frame in traceback.extract_tb(error.__traceback__) if frame.filename.endswith(f"{MODULE}.py")]
    location = f" (impl.py line {frames[-1].lineno})" if frames else ""
    return f"{type(error).__name__}: {error}{location}"


if __name__ == "__main__":
    main()
