"""The process that calls an eval's check function: `python -I -m metier.evals.python_caller`."""

import importlib.util
import json
import traceback
from collections.abc import Callable
from typing import cast

from metier.tools.process.json_lines_worker import take_streams


def main() -> None:
    requests, replies = take_streams()
    request = cast("dict[str, object]", json.loads(requests.readline()))
    reply = _call(str(request["file"]), str(request["function"]), request["evidence"])
    replies.write(json.dumps(reply).encode() + b"\n")
    replies.flush()


def _call(file: str, function: str, evidence: object) -> dict[str, object]:
    try:
        returned = _load(file, function)(evidence)
    # Functions may be written like tests.
    except AssertionError as error:
        returned = (False, str(error) or "An assertion failed")
    except Exception as error:  # noqa: BLE001  the function of a pack may raise anything
        traceback.print_exc()
        returned = (False, f"{type(error).__name__}: {error}")
    passed, *rest = cast("tuple[object, ...]", returned) if isinstance(returned, tuple) else (returned,)
    # A function that returns nothing checks with assertions.
    return {"passed": True if passed is None else bool(passed), "evidence": str(rest[-1]) if rest else ""}


def _load(file: str, function: str) -> Callable[[object], object]:
    # By path: the pack is no package that could be imported by name.
    spec = importlib.util.spec_from_file_location("checks", file)
    assert spec is not None, f"{file!r} is not Python"
    assert spec.loader is not None, f"{file!r} cannot be loaded"
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return cast("Callable[[object], object]", getattr(module, function))


if __name__ == "__main__":
    main()
