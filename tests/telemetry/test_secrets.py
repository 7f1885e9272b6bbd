"""Known kinds of secrets are redacted, and ordinary text is not. The fakes are joined from parts for scanners."""

import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from metier.cli.shared.failure import report
from metier.errors import MetierError
from metier.events.run import RunFailed
from metier.events.step import StepStarted
from metier.ids import SystemClock, SystemIds
from metier.telemetry.jsonl import JsonlSink
from metier.telemetry.redaction import build_redactor
from metier.telemetry.sinks import Cleaner, EventWriter, RunScope

A36 = "aB3dE6gH9jK2mN5pQ8sT1vW4yZ7bC0eF3hJ6"
HEX32 = "0a1b2c3d4e5f60718293a4b5c6d7e8f9"
HEX64 = HEX32 + HEX32[::-1]
UPPER = "Q7R2S9T4U1V6W3X8Y5Z0"
PEM_BODY = "\n".join(["MIIEvQIBADANBgkqhkiG9w0BAQEFAASCBKcwggSjAgEAAoIBAQ" + A36] * 4)

SECRETS: list[tuple[str, str, str]] = [
    ("api key of the rule", "api_key={}", "sk-" + "xxx"),
    ("bearer header of the rule", "Authorization: Bearer {}", "xxx" + "yyy"),
    ("password of the rule", "password={}", "hunter" + "2"),
    ("sk key", "use {} now", "sk-" + "1234567890abcdefghij"),
    ("pk key", "use {} now", "pk-" + "1234567890abcdefghij"),
    ("rk key", "use {} now", "rk-" + "1234567890abcdefghij"),
    ("aws id", "id {}", "AKIA" + UPPER[:16]),
    ("aws session id", "id {}", "ASIA" + UPPER[:16]),
    ("aws secret", "aws_secret_access_key = {}", "wJalrXUtnFEMI/K7MDENG/" + "bPxRfiCYzz9qKEYx1"),
    *[("github " + prefix, "remote {} ok", prefix + A36) for prefix in ("ghp_", "gho_", "ghu_", "ghs_", "ghr_")],
    ("mailersend", "sent by {} today", "mlsn." + HEX64),
    ("neon", "role has {} as its value", "npg_" + "d8WR5zJXnMam"),
    ("infisical", "use {} now", "st.a676dfa8-46b4-4d78-a7a1-d16d8ab96765." + HEX64[:32] + "." + HEX64[32:]),
    ("linkedin", "use {} now", "WPL_AP1." + "D3mlgqIqwd0sjPs5.4QLkpufqYG27=="),
    ("instagram", "use {} now", "IGQV" + A36 * 3),
    ("intercom", "use {} now", "dG9rO" + A36 + A36 + "="),
    ("salesforce", "use {} now", "00DaALNyau8mxQ1!" + A36 * 3),
    ("opsgenie", "Authorization: GenieKey {}", "d6ffe02e-f779-43b0-a2c9-" + "c443442f8613"),
    ("okta", "Authorization: SSWS {}", "00" + A36 + "x1_2"),
    ("infura", "https://mainnet.infura.io/v3/{}", HEX64[:32]),
    ("alchemy", "https://eth-mainnet.g.alchemy.com/v2/{}", A36[:32]),
    ("password hash", "u:$6${}:19000:0", "GeoLmCPuP84vnnlu$" + (A36 * 3)[:86]),
    ("bcrypt", "u:$2b$12${}", (A36 * 2)[:53]),
    ("new relic", "license {}", HEX64[:36] + "NRAL"),
    ("github fine", "x={}", "github_pat_" + "11ABCDEFG0" + A36 + "_" + A36),
    ("gitlab", "token {}", "glpat-" + A36[:20]),
    ("slack bot", "slack {}", "xoxb-" + "123456789012-1234567890123-" + A36[:24]),
    ("slack app", "slack {}", "xapp-" + "1-A0123456789-1234567890123-" + HEX32),
    ("slack webhook", "https://hooks.slack.com/{}", "services/T00000000/B00000000/" + A36[:24]),
    ("stripe", "pay {}", "sk_live_" + A36[:24]),
    ("stripe restricted", "pay {}", "rk_live_" + A36[:24]),
    ("stripe webhook", "pay {}", "whsec_" + A36[:32]),
    ("openai project", "{}", "sk-proj-" + A36 + "_" + A36),
    ("anthropic", "{}", "sk-ant-" + "api03-" + A36 + "-" + A36),
    ("openrouter", "{}", "sk-or-v1-" + HEX64),
    ("google", "?key={}", "AIza" + A36[:35]),
    ("google client", "{}", "GOCSPX-" + A36[:28]),
    ("google oauth", "{}", "ya29." + A36 + A36),
    ("npm", "{}", "npm_" + A36),
    ("pypi", "{}", "pypi-" + "AgEIcHlwaS5vcmcC" + A36 + A36),
    ("huggingface", "{}", "hf_" + A36[:34]),
    ("sendgrid", "{}", "SG." + A36[:22] + "." + (A36 + A36)[:43]),
    ("twilio", "{}", "SK" + HEX32),
    ("mailgun", "{}", "key-" + HEX32),
    ("digitalocean", "{}", "dop_v1_" + HEX64),
    ("shopify", "{}", "shpat_" + HEX32),
    ("square", "{}", "sq0atp-" + A36[:22]),
    ("square access", "{}", "EAAA" + (A36 + A36)[:60]),
    ("telegram", "https://api.telegram.org/bot{}/getMe", "110201543:" + "AA" + A36[:33]),
    ("discord", "bot {}", "MTk4NjIyNDgzNDcxOTI1MjQ4" + ".Cl2FMQ." + A36[:27]),
    ("discord webhook", "https://discord.com/api/webhooks/{}", "123456789012345678/" + A36 + A36),
    ("azure storage", "AccountName=x;AccountKey={};", "lJzRc1YdHaAA2KCNJJ1tkYwF/+mKK6Ygw0NGe170Xu59" + A36 + "8j8rQ=="),
    ("azure client", "{}", "aB3" + "8Q~" + A36[:34]),
    ("jwt", "Cookie {}", "eyJhbGciOiJIUzI1NiJ9" + ".eyJzdWIiOiIxMjM0NTY3ODkwIn0." + A36),
    ("private key", "-----BEGIN RSA PRIVATE KEY-----\n{}\n-----END RSA PRIVATE KEY-----\n", PEM_BODY),
    ("private key, cut off", "-----BEGIN OPENSSH PRIVATE KEY-----\n{}", PEM_BODY),
    ("url password", "postgres://app:{}@db.internal:5432/x", "pg-" + "S3cretPw"),
    ("redis password", "redis://:{}@cache:6379/0", "r3dis" + "pass"),
    ("databricks", "{}", "dapi" + HEX32),
    ("vault", "{}", "hvs." + A36 + A36),
    ("linear", "{}", "lin_api_" + A36 + "abcd"),
    ("notion", "{}", "ntn_" + A36 + A36[:10]),
    ("notion old", "{}", "secret_" + (A36 + A36)[:43]),
    ("postman", "{}", "PMAK-" + HEX32[:24] + "-" + (HEX32 + "ab")),
    ("terraform", "{}", A36[:14] + ".atlasv1." + (A36 + A36)[:67]),
    ("age", "{}", "AGE-SECRET-KEY-1" + (UPPER * 3)[:58]),
    ("doppler", "{}", "dp.pt." + (A36 + A36)[:43]),
    ("grafana", "{}", "glsa_" + A36[:32] + "_" + HEX32[:8]),
    ("new relic", "{}", "NRAK-" + (UPPER * 2)[:27]),
    ("fastly by name", "FASTLY_API_TOKEN={}", A36[:32]),
    ("figma", "{}", "figd_" + A36),
    ("docker", "{}", "dckr_pat_" + A36[:27]),
    ("mailchimp", "{}", HEX32 + "-us12"),
    ("groq", "{}", "gsk_" + A36 + A36[:16]),
    ("replicate", "{}", "r8_" + A36 + "a"),
    ("tailscale", "{}", "tskey-auth-" + "k123456CNTRL-" + A36[:32]),
    ("json name", '{{"client_secret": "{}"}}', "q9w8e7r6t5"),
    ("json in json", '{{\\"db_password\\":\\"{}\\"}}', "q9w8e7r6t5"),
    ("yaml name", "db:\n  password: {}\n", "correcthorse"),
    ("python name", "DB_PASSWORD = '{}'", "p4ss-w0rd"),
    ("typed python name", 'token: str = "{}"', "tok" + "en-1f2e3d"),
    ("environment", "export MY_API_KEY={}", "zxcvb" + "nm"),
    ("header", "X-Api-Key: {}", "a1b2c3" + "d4e5f6"),
    ("basic header", "Authorization: Basic {}", "dXNlcjpw" + "YXNzd29yZA=="),
    ("flag", "tool --password {} --verbose", "s3cr3t" + "pw"),
    ("curl", "curl -sS -u admin:{} https://x.test", "s3cr3t" + "pw"),
    ("mysql", "mysql -h db -uroot -p{} app", "s3cr3t" + "pw"),
    ("xml", "<password>{}</password>", "s3cr3t" + "pw"),
    ("netrc", "machine x.test login me password {}", "s3cr3t" + "pw"),
    ("query", "https://x.test/?a=1&access_token={}&b=2", "0a1b2c" + "3d4e"),
    ("encoded query", "redirect=%2Fcb%3Faccess_token%3D{}%26b", "0a1b2c" + "3d4e"),
    ("php define", "define('DB_PASSWORD', '{}');", "s3cr3t" + "pw"),
    ("prose", "The password is {} for now", "s3cr3t" + "pw"),
    ("docker config", '{{"auths": {{"x": {{"auth": "{}"}}}}}}', "dXNlcjpwYXNz" + "d29yZA=="),
    ("signed url", "https://b.s3.test/k?X-Amz-Signature={}&x=1", HEX64),
    ("start of a line", "done\n{}\nnext", "ghp_" + A36),
    ("start of a line in a string", "done\\n{}\\nnext", "ghp_" + A36),
    ("token at the start of a line", "done\ntoken={}\nnext", "abc" + "123x"),
    ("token at the start of a line in a string", "done\\ntoken={}\\nnext", "abc" + "123x"),
    ("jwt after a tab", "a\t{}", "eyJhbGciOiJIUzI1NiJ9" + ".eyJzdWIiOiIxMjM0NTY3ODkwIn0." + A36),
    ("colour inside", "ghp_\x1b[31m{}", A36),
]

HARMLESS = [
    "commit 3101debf0c2f1b3e4d5a69788796a5b4c3d2e1f0",
    "f81d4fae-7dec-11d0-a765-00a0c91e6bf6",
    "sha256:e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855",
    "sha512-z4PhNX7vuL3xVChQ1m2AB9Yg5AULVxXcg/SpIdNs6c5H0NE8XYXysP+DGNKHfuwvY7kxvUdBeoGlODJ6+SfaPg==",
    "data:image/png;base64,iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mNk+M9QDwADhgGAWjR9awAAAABJRU5ErkJggg==",
    "password = get_password()",
    "password = getpass.getpass('Password: ')",
    "token: str",
    "token: str | None = None",
    "def login(user: str, password: str) -> None:",
    "max_tokens=4096",
    "input_tokens: 1234, output_tokens: 88",
    "api_key_env: ANTHROPIC_API_KEY",
    "api_key=os.environ['OPENAI_API_KEY']",
    'api_key: "ANTHROPIC_API_KEY"',
    "password: null",
    "password: required",
    "password=None",
    'headers = {"Authorization": f"Bearer {token}"}',
    "Authorization: Bearer $TOKEN",
    "curl -H 'Authorization: Bearer ${API_TOKEN}' https://x.test",
    "export API_KEY=<your key>",
    "self.token = token",
    "if token == other.token:",
    "secret_name: database-credentials",
    "password_file=/run/secrets/db",
    "PASSWORD_FILE: /run/secrets/db",
    "primary key: id, foreign key: user_id",
    "cache_key=users:42:profile",
    "the token expired; ask for a new token",
    "Keyboard: press any key to continue",
    "https://github.com/org/repo/pull/42/files#diff-0a1b2c3d4e5f60718293a4b5c6d7e8f90a1b2c3d",
    "http://localhost:5000/@variable",
    "git@github.com:org/repo.git",
    "ssh://git@github.com:22/org/repo",
    "scikit-learn, sk-learn-contrib and risk-management-tool",
    "task-driven disk-usage-analysis-of-everything",
    "skill_disclosure_loaded stage=2 files=references/authentication.md",
    "tokenizer.pad_token = tokenizer.eos_token",
    "next_page_token=abc123def456",
    "-----BEGIN CERTIFICATE-----\nMIIBszCCAVmgAwIBAgIUQ0\n-----END CERTIFICATE-----",
    'if "-----BEGIN RSA PRIVATE KEY-----" in line:',
    "-----BEGIN PUBLIC KEY-----\nMFkwEwYHKoZIzj0CAQYIKoZIzj0DAQcDQgAE\n-----END PUBLIC KEY-----",
    "ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAIJ4sQ5xV7yq0m1k2j3h4g5f6d7s8a9p0o1i2u3y4t5r6 me@host",
    "auth: true",
    "author: Jane Doe <jane@example.test>",
    "20261115-040225-0a1b2c3d4e5f",
    "/usr/lib/python3.12/site-packages/pydantic_core/_pydantic_core.cpython-312-x86_64-linux-gnu.so",
    "password: ********",
    "api_key=***REDACTED***",
    "${{ secrets.GITHUB_TOKEN }}",
    "token: ${{ secrets.NPM_TOKEN }}",
    "const token = await getToken();",
    "password: str = Field(default='')",
    "APPLICATION APACHE2 AKCELERATOR ACCOUNTING SKELETONS",
]

IDS = [name for name, _, _ in SECRETS]


@pytest.mark.parametrize("row", SECRETS, ids=IDS)
def test_secret_is_redacted_in_events_errors_and_tracebacks(
    row: tuple[str, str, str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    _, template, secret = row
    text = template.format(secret)

    _log(tmp_path / "events.jsonl", text)
    exit_code = _report(lambda: _fail(text))

    shown = capsys.readouterr().err
    logged = (tmp_path / "events.jsonl").read_text()
    assert exit_code == 1
    assert "Traceback" in shown
    for written in (shown, logged):
        assert "***REDACTED***" in written
        assert all(line not in written for line in secret.splitlines())


@pytest.mark.parametrize("text", HARMLESS)
def test_ordinary_text_is_not_redacted(text: str) -> None:
    redactor = build_redactor(values=["true", "abc", "localhost", "", "aaaaaaaa"], names=["MY_PASSPHRASE"])

    assert redactor.redact(text) is text


@pytest.mark.parametrize(("template", "secret"), [row[1:] for row in SECRETS], ids=IDS)
def test_redacting_twice_changes_nothing(template: str, secret: str) -> None:
    once = build_redactor().redact(template.format(secret))

    assert build_redactor().redact(once) == once


def test_name_before_a_secret_is_kept() -> None:
    redact = build_redactor().redact

    assert redact("api_key=sk-" + "abc") == "api_key=***REDACTED***"
    assert redact("Authorization: Bearer " + "abc") == "Authorization: Bearer ***REDACTED***"
    assert redact("password=" + "abc&user=bob") == "password=***REDACTED***&user=bob"
    assert redact("Server=x;Password=" + "abc;Port=1") == "Server=x;Password=***REDACTED***;Port=1"


def _log(path: Path, text: str) -> None:
    clock, ids = SystemClock(), SystemIds()
    sink = JsonlSink.open(path, clock=clock)
    scope = RunScope(run_id="r", trace_id=ids.trace_id())
    writer = EventWriter(sink, Cleaner(build_redactor()), scope=scope, clock=clock, ids=ids)
    writer.emit(RunFailed(reason="x", message=text))
    writer.emit(StepStarted(step_id="s", action="call_tool", arguments={"nested": [{"note": text}]}))
    writer.close()


def _fail(text: str) -> None:
    try:
        raise ValueError(text)
    except ValueError as error:
        raise MetierError(f"It broke: {text}", hint=text) from error


def _report(fail: Callable[[], None]) -> int:
    try:
        fail()
    except MetierError as error:
        return report(error, debug=True)
    sys.exit("nothing failed")
