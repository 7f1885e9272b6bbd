"""Access to the server: forged hosts and origins, missing and wrong tokens, roles, sessions, CSRF, limits."""

import json
import logging
import re
from pathlib import Path
from typing import Any, cast

import httpx2
import pytest
from model_server import ModelServer, calls, says
from run_workspace import Workspace
from running_server import TLS, RunningServer, serving
from test_api_runs import start, wait_until

from metier.server.hosts import build_allowed, is_allowed_host, is_allowed_origin, is_loopback
from metier.server.users import build_entry, make_token

RUNS = "/api/v1/runs"


def configure_server(workspace: Workspace, **options: object) -> None:
    settings = cast("dict[str, Any]", json.loads((workspace.folder / "agent.yaml").read_text()))
    workspace.configure(**settings, server=options)


@pytest.mark.parametrize(
    ("headers", "status", "code"),
    [
        ({"host": "evil.example"}, 421, "host_not_allowed"),
        ({"host": "127.0.0.1"}, 421, "host_not_allowed"),
        ({"host": "localhost.evil.example:80"}, 421, "host_not_allowed"),
        ({"origin": "https://evil.example"}, 403, "foreign_origin"),
        ({"origin": "http://127.0.0.1:1"}, 403, "foreign_origin"),
        ({"origin": "null"}, 403, "foreign_origin"),
        ({"sec-fetch-site": "cross-site"}, 403, "foreign_origin"),
        ({"sec-fetch-site": "same-site"}, 403, "foreign_origin"),
        ({"authorization": "Bearer wrong"}, 401, "token_refused"),
        ({"authorization": ""}, 401, "token_missing"),
        ({"authorization": "Basic YTpi"}, 401, "token_missing"),
    ],
)
def test_a_forged_write_is_refused_and_starts_nothing(
    server: RunningServer, headers: dict[str, str], status: int, code: str
) -> None:
    with server.client() as client:
        answer = client.post(RUNS, json={"task": "greet me"}, headers=headers)

    assert (answer.status_code, answer.json()["code"]) == (status, code)
    assert server.get(RUNS)["items"] == []


@pytest.mark.parametrize("site", ["cross-site", "same-site"])
def test_a_stream_for_another_origin_is_rejected(server: RunningServer, site: str) -> None:
    headers = {"accept": "text/event-stream", "sec-fetch-site": site, "sec-fetch-mode": "cors"}
    with server.sign_in() as client:
        answer = client.get(f"{RUNS}/latest/events", headers=headers)
        forged = client.get(f"{RUNS}/latest/events", headers={**headers, "origin": "http://127.0.0.1:1"})

    assert (answer.status_code, forged.status_code) == (403, 403)


def test_no_response_allows_another_origin(server: RunningServer) -> None:
    with server.client() as client:
        answer = client.get(RUNS)
        asked = client.options(
            RUNS, headers={"origin": "https://evil.example", "access-control-request-method": "POST"}
        )

    assert not [name for name in (*answer.headers, *asked.headers) if name.startswith("access-control")]
    assert asked.status_code == 403


def test_a_one_time_code_signs_in_once(server: RunningServer) -> None:
    assert server.config is not None
    assert server.state is not None
    user = server.state.access.users.find(server.token)
    assert user is not None
    code = server.state.codes.issue(user)
    with httpx2.Client(base_url=server.url, trust_env=False, verify=TLS) as browser:
        first = browser.get("/login", params={"code": code})
        cookie = first.headers["set-cookie"]
        inside = browser.get(RUNS)
    with httpx2.Client(base_url=server.url, trust_env=False, verify=TLS) as thief:
        second = thief.get("/login", params={"code": code})
        outside = thief.get(RUNS)

    assert (first.status_code, first.headers["location"], inside.status_code) == (303, "/", 200)
    assert all(word in cookie for word in ("HttpOnly", "SameSite=strict", "Path=/"))
    assert (second.status_code, "set-cookie" in second.headers, outside.status_code) == (401, False, 401)


def test_sign_in_redirects_only_to_pages_of_this_server(server: RunningServer) -> None:
    with httpx2.Client(base_url=server.url, trust_env=False, verify=TLS) as browser:
        for wanted in ("//evil.example", "https://evil.example", "/\\evil.example", "javascript:alert(1)"):
            answer = browser.post("/login", data={"token": server.token, "next": wanted})
            assert (answer.status_code, answer.headers["location"]) == (303, "/")


def test_a_browser_needs_the_csrf_token_of_its_session_for_changes(server: RunningServer) -> None:
    assert server.state is not None
    access = server.state.access
    with server.sign_in() as browser:
        cookie = browser.cookies[access.cookie]
        user = access.sessions.read(cookie, now=access.clock.now())
        assert user is not None
        token = access.sessions.csrf_token(user)
        without = browser.post(RUNS, json={"task": "x"})
        wrong = browser.post(RUNS, json={"task": "x"}, headers={"x-csrf-token": "0" * 64})
        form = browser.post("/logout", data={"csrf_token": "no"})
        right = browser.post(f"{RUNS}/none/cancel", headers={"x-csrf-token": token})
        left = browser.post("/logout", data={"csrf_token": token})

    assert [each.status_code for each in (without, wrong, form)] == [403, 403, 403]
    assert right.status_code == 404
    assert (left.status_code, left.headers["location"]) == (303, "/login")


def test_a_modified_or_expired_cookie_is_ignored(server: RunningServer, monkeypatch: pytest.MonkeyPatch) -> None:
    assert server.state is not None
    access = server.state.access
    with server.sign_in() as browser:
        cookie = browser.cookies[access.cookie]
    body, _, signature = cookie.rpartition(".")
    forged = (f"{body}x.{signature}", f"{body}.{'0' * 64}", "", ".", "a.b.c", f"{body}.{signature}0")

    for each in forged:
        with server.client(token="") as client:
            answer = client.get(RUNS, headers={"cookie": f"{access.cookie}={each}"})
        assert answer.status_code == 401


def test_roles_restrict_named_users_and_decisions_record_their_names(workspace: Workspace, model: ModelServer) -> None:
    tokens = {role: make_token() for role in ("peer", "viewer", "approver", "operator")}
    users = [build_entry(f"the-{role}", cast("Any", role), token) for role, token in tokens.items()]
    configure_server(workspace, users=users)
    model.follow(calls("Write", path="note.txt", content="x"), says("Done."))
    with serving(workspace.folder) as server:

        def post(role: str, path: str, body: object) -> httpx2.Response:
            with server.client(tokens[role]) as client:
                return client.post(path, json=body)

        started = {role: post(role, RUNS, {"task": "write", "profile": "guarded"}).status_code for role in tokens}
        run_id = str(server.get(RUNS)["items"][0]["run_id"])
        wait_until(server, run_id, "paused")
        asked = server.get("/api/v1/approvals")["items"][0]
        approval, seen_hash = asked["approval_id"], {"hash": asked["hash"]}
        decided = {role: post(role, f"/api/v1/approvals/{approval}/approve", seen_hash).status_code for role in tokens}
        canceled = {role: post(role, f"{RUNS}/{run_id}/cancel", {}).status_code for role in ("viewer", "approver")}
        record = server.get(f"/api/v1/approvals/{approval}")
        with server.client(tokens["peer"]) as client:
            seen = [client.get(path).status_code for path in (RUNS, "/api/v1/approvals", "/")]
            door = client.post("/mcp", json={}).status_code

    assert seen == [403, 403, 403]
    assert door not in (401, 403)
    assert started == {"peer": 403, "viewer": 403, "approver": 403, "operator": 201}
    assert decided == {"peer": 403, "viewer": 403, "approver": 200, "operator": 409}
    assert canceled == {"viewer": 403, "approver": 403}
    assert record["decided_by"] == "the-approver"
    assert [attempt["decided_by"] for attempt in record["attempts"]] == ["the-approver", "the-operator"]


def test_editing_calls_raising_limits_and_accepting_code_need_a_grant(workspace: Workspace, model: ModelServer) -> None:
    tokens = {"plain": make_token(), "granted": make_token()}
    users = [
        build_entry("plain", "approver", tokens["plain"]),
        build_entry("granted", "approver", tokens["granted"], grants=["edit", "limits", "code"]),
    ]
    configure_server(workspace, users=users)
    model.follow(calls("Write", path="note.txt", content="x"), says("Done."))
    with serving(workspace.folder) as server:
        run_id = str(server.post(RUNS, {"task": "write", "profile": "guarded"}, status=201)["run_id"])
        wait_until(server, run_id, "paused")
        asked = server.get("/api/v1/approvals")["items"][0]
        approval, edited = asked["approval_id"], {"path": "b.txt", "content": "y"}
        attempts = {
            f"{RUNS}/{run_id}/resume": ({"max_turns": 90}, {"max_cost_usd": 9}, {"accept_changed_skills": True}),
            f"{RUNS}/{run_id}/answer": ({"max_turns": 90}, {"accept_changed_skills": True}),
            f"/api/v1/approvals/{approval}/approve": ({"arguments": edited, "hash": asked["hash"]},),
        }
        with server.client(tokens["plain"]) as client:
            refused = [client.post(path, json=body) for path, bodies in attempts.items() for body in bodies]
        still_open = server.get(f"/api/v1/approvals/{approval}")["status"]
        with server.client(tokens["granted"]) as client:
            granted = [client.post(path, json=body) for path, bodies in attempts.items() for body in bodies[:1]]
        wait_until(server, run_id, "completed")

    assert {(each.status_code, each.json()["code"]) for each in refused} == {(403, "grant_missing")}
    assert still_open == "open"
    assert {each.status_code for each in granted} == {200}
    assert (workspace.folder / "b.txt").read_text(encoding="utf-8") == "y"


@pytest.mark.parametrize("path", ["approvals/a/edit", "runs/r/accept", "runs/r/raise"])
def test_console_forms_check_the_grant_of_an_approver(workspace: Workspace, path: str) -> None:
    token = make_token()
    configure_server(workspace, users=[build_entry("plain", "approver", token)])
    with serving(workspace.folder) as server, server.client(token) as client:
        answer = client.post(f"/{path}", data={"do": "approve"})

    assert answer.status_code == 403
    assert "is not permitted to" in answer.text


def test_new_user_with_a_grant_gets_an_entry_that_the_settings_accept(
    workspace: Workspace, capsys: pytest.CaptureFixture[str]
) -> None:
    assert workspace.agent("serve", "--new-user", "ann", "--role", "approver", "--grant", "edit", "--json") == 0
    entry = json.loads(capsys.readouterr().out)["entry"]
    configure_server(workspace, users=[entry])

    assert entry.startswith("ann:approver+edit:")
    assert workspace.agent("config", "validate") == 0
    assert workspace.agent("serve", "--new-user", "bob", "--role", "viewer", "--grant", "edit") == 2


def test_an_oversized_body_is_rejected_with_or_without_content_length(server: RunningServer) -> None:
    long = json.dumps({"task": "x" * 2_000_000}).encode()
    headers = {"content-type": "application/json"}
    with server.client() as client:
        announced = client.post(RUNS, content=long, headers=headers)
        chunked = client.post(RUNS, content=iter([long[:1_000_000], long[1_000_000:]]), headers=headers)

    assert (announced.status_code, chunked.status_code) == (413, 413)


def test_excess_requests_and_invalid_tokens_are_rate_limited(workspace: Workspace) -> None:
    configure_server(workspace, requests_per_minute=5)
    with serving(workspace.folder) as server, server.client() as client, server.client("wrong") as guesser:
        # As many as a slow machine needs: the limits refill while requests are answered.
        statuses = {client.get(RUNS).status_code for _ in range(8)}
        while 429 not in statuses:
            statuses.add(client.get(RUNS).status_code)
        guesses = {guesser.get(RUNS).status_code}
        while 429 not in guesses:
            guesses.add(guesser.get(RUNS).status_code)

    assert statuses == {200, 429}
    assert guesses == {401, 429}


PROXY_SECRET = "p" * 40


def test_proxy_signs_users_in_with_the_highest_role_of_their_groups(workspace: Workspace, model: ModelServer) -> None:
    model.follow(calls("Write", path="notes.md", content="words"), says("Written."))
    configure_server(workspace, proxy_roles=["everyone:viewer", "on-call:approver", "admins:operator"])
    workspace.agent("run", "Write the notes", "--profile", "guarded", "-q")
    ann = {"x-proxy-secret": PROXY_SECRET, "x-forwarded-user": "ann", "x-forwarded-groups": "everyone, on-call"}
    bob = {**ann, "x-forwarded-user": "bob", "x-forwarded-groups": "visitors"}
    with serving(workspace.folder, AGENT_SERVER_PROXY_SECRET=PROXY_SECRET) as server, server.client("") as client:
        inbox = client.get("/", headers=ann)
        (approval,) = client.get("/api/v1/approvals", headers=ann).json()["items"]
        address = f"/approvals/{approval['approval_id']}"
        form = {"decision": "denied", "hash": approval["hash"]}
        forged = client.post(address, data=form, headers=ann)
        (token,) = set(re.findall(r'name="csrf_token" value="(\w+)"', inbox.text))
        denied = client.post(address, data={**form, "csrf_token": token}, headers=ann)
        started = client.post(RUNS, json={"task": "x"}, headers={**ann, "x-csrf-token": token})
        stranger = client.get(RUNS, headers=bob)
        guessed = client.get(RUNS, headers={**ann, "x-proxy-secret": "q" * 40})
        protocol = client.post("/mcp", json={}, headers=ann)
        decided = server.get(f"/api/v1/approvals/{approval['approval_id']}")

    assert "ann, approver" in inbox.text
    assert (forged.status_code, forged.json()["code"]) == (403, "csrf_token_refused")
    assert denied.status_code == 303
    assert decided["decided_by"] == "ann"
    assert (started.status_code, started.json()["code"]) == (403, "role_too_low")
    assert (stranger.status_code, stranger.json()["code"]) == (403, "role_missing")
    assert guessed.status_code == protocol.status_code == 401


def test_roles_of_a_proxy_need_its_secret(workspace: Workspace, capsys: pytest.CaptureFixture[str]) -> None:
    configure_server(workspace, proxy_roles=["admins:operator"])

    assert workspace.agent("serve") == 2
    assert "AGENT_SERVER_PROXY_SECRET" in capsys.readouterr().err


def test_every_response_has_a_content_security_policy_with_its_own_nonce(server: RunningServer) -> None:
    with server.client("") as client:
        answers = [client.get("/login") for _ in range(2)]
        problem = client.get("/nothing")

    policies = [answer.headers["content-security-policy"] for answer in answers]
    assert policies[0] != policies[1]
    for wanted in ("default-src 'none'", "require-trusted-types-for 'script'", "frame-ancestors 'none'"):
        assert wanted in policies[0]
    assert "nonce-" in policies[0]
    assert policies[0].split("nonce-")[1].split("'")[0] in answers[0].text
    assert (problem.headers["x-content-type-options"], problem.headers["referrer-policy"]) == ("nosniff", "same-origin")
    assert problem.headers["cache-control"] == "no-store"


def test_an_artifact_is_a_sandboxed_download_and_no_path_leads_out(
    workspace: Workspace, server: RunningServer, model: ModelServer
) -> None:
    model.follow(says("Done."))
    run_id = start(server)
    wait_until(server, run_id, "completed")
    artifacts = workspace.folder / "runs" / run_id / "artifacts"
    artifacts.mkdir(exist_ok=True)
    (artifacts / "page.html").write_text("<script>alert(1)</script>")
    (artifacts / "link").symlink_to(workspace.folder / "agent.yaml")
    with server.client() as client:
        answer = client.get(f"{RUNS}/{run_id}/artifacts/page.html")
        out = [
            client.get(f"{RUNS}/{run_id}/artifacts/{name}").status_code
            for name in ("..%2Frun.json", "link", "%2e%2e%2fevents.jsonl", "nothing")
        ]

    assert answer.headers["content-type"] == "application/octet-stream"
    assert answer.headers["content-disposition"].startswith("attachment")
    assert "sandbox" in answer.headers["content-security-policy"]
    assert out == [404, 404, 404, 404]


def test_no_token_and_no_code_is_logged(
    server: RunningServer, caplog: pytest.LogCaptureFixture, capfd: pytest.CaptureFixture[str]
) -> None:
    caplog.set_level(logging.DEBUG)
    assert server.state is not None
    user = server.state.access.users.find(server.token)
    assert user is not None
    code = server.state.codes.issue(user)
    with server.client() as client:
        client.get("/login", params={"code": code})
        client.get("/nothing")
        client.post(RUNS, content=b"{", headers={"content-type": "application/json"})

    ours = [record.getMessage() for record in caplog.records if not record.name.startswith("http")]
    said = "\n".join(ours) + "".join(capfd.readouterr())
    assert server.token not in said
    assert code not in said


def test_hosts_are_compared_completely_and_with_their_port() -> None:
    allowed = build_allowed(host="127.0.0.1", port=8321, named=("agents.example.org", "box:9000"))

    assert all(
        is_allowed_host(host, allowed)
        for host in (
            "127.0.0.1:8321",
            "LOCALHOST:8321",
            "[::1]:8321",
            "agents.example.org",
            "agents.example.org:8321",
            "box:9000",
        )
    )
    assert not any(
        is_allowed_host(host, allowed)
        for host in ("", "127.0.0.1", "localhost:80", "box", "evil-agents.example.org", "agents.example.org:1")
    )
    assert is_allowed_origin("https://agents.example.org", allowed)
    assert not any(is_allowed_origin(each, allowed) for each in ("null", "", "https://evil", "file://", "http://[bad"))
    assert [is_loopback(each) for each in ("127.0.0.1", "127.9.9.9", "::1", "localhost", "0.0.0.0", "box")] == [
        True, True, True, True, False, False,
    ]  # fmt: skip


def test_a_session_key_must_be_long(
    workspace: Workspace, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    monkeypatch.setenv("AGENT_SERVER_SECRET", "short")

    assert workspace.agent("serve", "--port", "0") == 2
    assert "shorter than 32 characters" in capsys.readouterr().err
