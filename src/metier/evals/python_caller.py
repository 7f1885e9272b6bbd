"""The other side of `python_checks`: a program that calls one function of one file and prints what it said.

It imports nothing of Metier: it runs where only the file of the pack and this one can be read.
"""

import importlib.util
import json
import sys
import traceback
from pathlib import Path
from typing import cast


def main(file: str, function: str, evidence: str) -> None:
    spec = importlib.util.spec_from_file_location("checks", file)
    assert spec is not None, f"{file!r} is not Python"
    assert spec.loader is not None, f"{file!r} cannot be loaded"
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    try:
        said: object = getattr(module, function)(json.loads(Path(evidence).read_text(encoding="utf-8")))
    except AssertionError as error:
        said = (False, str(error) or "An assertion does not hold")
    except Exception as error:  # noqa: BLE001  whatever the function of a pack raises
        traceback.print_exc()
        said = (False, f"{type(error).__name__}: {error}")
    pair = cast("tuple[object, ...]", said) if isinstance(said, tuple) else (said, "")
    passed, told = pair[0], pair[-1]
    # A function that returns nothing has asserted what it had to.
    answer = {"passed": True if passed is None else bool(passed), "evidence": str(told)}
    print(json.dumps(answer))  # noqa: T201  the answer of this program


if __name__ == "__main__":
    main(*sys.argv[1:])
