"""Code that is unsafe inside a synchronous task, by line, with a replacement."""

import json
from pathlib import Path

import pytest

from metier.capabilities.sync_check import check_file, check_source
from metier.cli.main import run

UNSAFE = [
    ("async def f(): pass", "async_def"),
    ("async def f():\n    await g()", "await"),
    ("async def f():\n    async with g(): pass", "await"),
    ("async def f():\n    return [x async for x in g()]", "await"),
    ("import asyncio", "async_import"),
    ("from aiohttp import web", "async_import"),
    ("def f():\n    import anyio.to_thread", "async_import"),
    ("import importlib\nimportlib.import_module('asyncio')", "async_import"),
    ("__import__('trio')", "async_import"),
    ("from httpx import AsyncClient\nAsyncClient(timeout=1)", "await"),
    ("import threading\nthreading.Thread(target=f).start()", "thread_without_join"),
    ("from threading import Thread as T\ndef f():\n    t = T(target=f)\n    t.start()", "thread_without_join"),
    ("import threading\ndef f():\n    t = threading.Thread(target=f)\ndef g(t):\n    t.join()", "thread_without_join"),
    ("import threading\nt = threading.Thread(target=f, daemon=True)\nt.join()", "background_task"),
    ("import threading\nthreading.Timer(5, f).start()", "thread_without_join"),
    ("import multiprocessing\np = multiprocessing.Process(target=f)\np.start()", "thread_without_join"),
    ("from concurrent.futures import ThreadPoolExecutor\np = ThreadPoolExecutor()\np.submit(f)", "background_task"),
    ("import requests\nrequests.get('u')", "http_without_timeout"),
    ("import requests\nrequests.post('u', timeout=None)", "http_without_timeout"),
    ("import requests as r\nr.request('GET', 'u')", "http_without_timeout"),
    ("from requests import get\nget('u')", "http_without_timeout"),
    ("import requests\ns = requests.Session()\ns.get('u')", "http_without_timeout"),
    ("import requests\nwith requests.Session() as s:\n    s.get('u')", "http_without_timeout"),
    ("import requests\nrequests.Session().get('u')", "http_without_timeout"),
    ("import urllib.request\nurllib.request.urlopen('u')", "http_without_timeout"),
    ("from urllib.request import urlopen\nurlopen('u', None, None)", "http_without_timeout"),
    ("import http.client\nhttp.client.HTTPSConnection('h')", "http_without_timeout"),
    ("import socket\nsocket.create_connection(('h', 1))", "http_without_timeout"),
    ("import httpx\nhttpx.get('u', timeout=None)", "http_without_timeout"),
    ("import subprocess\nsubprocess.Popen(['x'])", "background_task"),
    ("import os\nos.fork()", "background_task"),
    ("import os\nos.system('server &')", "background_task"),
    ("x = input('name? ')", "waits_for_person"),
    ("def f(:", "python_syntax"),
]

SAFE = [
    "import requests\nrequests.get('u', timeout=10)",
    "import requests\nrequests.get('u', **options)",
    "import requests\nwith requests.Session() as s:\n    s.get('u', timeout=3)",
    "import urllib.request\nurllib.request.urlopen('u', None, 5)",
    "import httpx\nhttpx.get('u', timeout=5)",
    "import threading\ndef f():\n    t = threading.Thread(target=g)\n    t.start()\n    t.join()",
    "import threading\ndef f():\n    ts = [threading.Thread(target=g)]\n    for t in ts:\n        t.join(5)",
    "import threading\ndef f():\n    ts = []\n    ts.append(threading.Thread(target=g))\n    [t.join() for t in ts]",
    "from concurrent.futures import ThreadPoolExecutor\nwith ThreadPoolExecutor() as p:\n    p.submit(f)",
    "import subprocess\nwith subprocess.Popen(['x']) as p:\n    pass",
    "import subprocess\np = subprocess.Popen(['x'])\np.communicate()",
    "import subprocess\nsubprocess.run(['x'], timeout=3)",
    "import os\nos.system('a && b')",
    "def get(u):\n    return u\nget('u')",
    "import asyncio_like",
    "text = ','.join(['a'])",
]


@pytest.mark.parametrize(("source", "code"), UNSAFE)
def test_unsafe_code_is_found_in_its_last_line_with_a_fix(source: str, code: str) -> None:
    found = [finding for finding in check_source(source) if finding.code == code]

    assert found, check_source(source)
    assert all(finding.hint and finding.severity == "error" for finding in found)
    assert 1 <= (found[-1].line or 0) <= source.count("\n") + 1


@pytest.mark.parametrize("source", SAFE)
def test_safe_code_is_not_reported(source: str) -> None:
    assert check_source(source) == ()


@pytest.mark.parametrize(
    "source",
    ["import httpx\nhttpx.get('u')", "import subprocess\nsubprocess.run(['x'])", "task.delay(1)"],
)
def test_call_with_its_own_timeout_is_a_warning(source: str) -> None:
    assert [finding.severity for finding in check_source(source)] == ["warning"]


def test_command_walks_a_folder_and_prints_file_line_and_fix(
    workspace: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (workspace / "pack" / "scripts").mkdir(parents=True)
    (workspace / "pack" / "impl.py").write_text("import requests\n\nrequests.get('u')\n", encoding="utf-8")
    (workspace / "pack" / "scripts" / "fine.py").write_text("print(1)\n", encoding="utf-8")

    assert run(["skills", "check-sync", "pack"]) == 1

    shown = capsys.readouterr()
    assert shown.out == (
        "pack/impl.py:3: error: requests.get can wait forever: it has no timeout [http_without_timeout] "
        "(Write get(…, timeout=10))\n"
    )
    assert shown.err == "Checked 2 files: 1 error, 0 warnings\n"


def test_strict_counts_warnings(workspace: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (workspace / "tool.py").write_text("import httpx\nhttpx.get('u')\n", encoding="utf-8")

    assert run(["skills", "check-sync", "tool.py"]) == 0
    assert run(["skills", "check-sync", "tool.py", "--strict", "--json"]) == 1

    (problem,) = json.loads(capsys.readouterr().out.split("\n", 1)[1])["problems"]
    assert problem == {
        "file": "tool.py",
        "severity": "error",
        "code": "http_default_timeout",
        "line": 2,
        "message": "httpx.get relies on the default timeout",
        "remedy": "Write timeout=10",
    }


@pytest.mark.parametrize("path", ["missing.py", "."])
def test_nothing_to_check_is_a_usage_error(workspace: Path, path: str) -> None:
    assert run(["skills", "check-sync", path]) == 2


def test_code_of_bundled_skills_is_safe(workspace: Path) -> None:
    bundled = Path(__file__).parents[2] / "src" / "metier" / "bundled"

    for impl in (*bundled.glob("*/impl.py"), *bundled.glob("*/scripts")):
        assert run(["skills", "check-sync", str(impl)]) == 0


def test_changed_file_is_checked_again(tmp_path: Path) -> None:
    file = tmp_path / "impl.py"
    verdicts: list[int] = []
    for text in ("x = 1\n", "import asyncio\n", "x = 1\n"):
        file.write_text(text, encoding="utf-8")
        verdicts.append(len(check_file(file)))

    assert verdicts == [0, 1, 0]
