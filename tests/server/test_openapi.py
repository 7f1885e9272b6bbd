"""Every route that the OpenAPI document names, called with what it allows and with what it does not: never a 500."""

import os
import re
from contextlib import suppress
from typing import Any, cast

import pytest
import schemathesis
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis.errors import Unsatisfiable
from model_server import ModelServer, says
from run_workspace import Workspace
from running_server import RunningServer, serving
from schemathesis import GenerationMode
from test_api_runs import start, wait_until
from test_security import configure_server

EXAMPLES = int(os.environ.get("METIER_OPENAPI_EXAMPLES", "3"))
"""Of each route, good and bad; more by hand."""

type Operation = Any
"""Of a library without types."""


def call(server: RunningServer, operation: Operation, mode: GenerationMode) -> list[str]:
    """Problems of the answers."""
    wrong: list[str] = []
    headers = {"Authorization": f"Bearer {server.token}"}

    @settings(
        max_examples=EXAMPLES,
        phases=[Phase.generate],
        deadline=None,
        database=None,
        derandomize=True,
        suppress_health_check=[HealthCheck.too_slow, HealthCheck.filter_too_much, HealthCheck.data_too_large],
    )
    @given(case=operation.as_strategy(generation_mode=mode))
    def check(case: Any) -> None:
        answer = case.call(base_url=server.url, headers=headers, timeout=30)
        kind = str(answer.headers.get("content-type", [""])[0])
        if answer.status_code >= 500:
            wrong.append(f"{operation.label}: {answer.status_code} {case.as_curl_command()} {answer.text[:300]}")
        elif answer.status_code >= 400 and kind != "application/problem+json":
            wrong.append(f"{operation.label}: {answer.status_code} is no problem document but {kind}")

    with suppress(Unsatisfiable):  # a route without parameters cannot be called wrongly
        check()
    return wrong


@pytest.mark.slow
def test_no_route_fails_on_arbitrary_input(workspace: Workspace, model: ModelServer) -> None:
    model.follow(says("Done."))
    configure_server(workspace, requests_per_minute=100_000)
    with serving(workspace.folder) as server:
        wait_until(server, start(server), "completed")
        document = server.get("/api/openapi.json")
        schema = cast("Any", schemathesis.openapi.from_dict(document))
        wrong: list[str] = []
        for found in schema.get_all_operations():
            operation = found.ok()
            for mode in (GenerationMode.POSITIVE, GenerationMode.NEGATIVE):
                wrong += call(server, operation, mode)

    assert not wrong, "\n".join(wrong)
    assert {"/api/v1/runs", "/api/v1/approvals/{approval}/approve"} <= set(document["paths"])


def test_document_names_security_schemes_and_stable_operations(server: RunningServer) -> None:
    document = server.get("/api/openapi.json")

    schemes = document["components"]["securitySchemes"]
    assert (schemes["token"]["type"], schemes["token"]["scheme"]) == ("http", "bearer")
    assert schemes["session"]["in"] == "cookie"
    assert document["security"] == [{"token": []}, {"session": []}]
    assert document["paths"]["/api/v1/health"]["get"]["security"] == []
    names = [operation["operationId"] for path in document["paths"].values() for operation in path.values()]
    assert len(set(names)) == len(names)
    assert {"list_runs", "get_run", "approve", "deny", "get_cost"} <= set(names)
    assert all(re.fullmatch(r"[a-z_]+", name) for name in names)
