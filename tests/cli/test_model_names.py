"""Model names: `provider/model` in every place that names a model, as the servers receive it."""

import json
from collections.abc import Iterator
from io import StringIO

import pytest
from agent_files import add_agent
from run_workspace import QUICK, Workspace
from vendor_servers import KEYS, VENDORS, VendorServers, running_vendors

type Capture = pytest.CaptureFixture[str]


@pytest.fixture
def vendors(monkeypatch: pytest.MonkeyPatch, workspace: Workspace) -> Iterator[VendorServers]:
    for variable in KEYS.values():
        monkeypatch.setenv(variable, "k" * 12)
    with running_vendors() as running:
        use(workspace, running, "anthropic")
        yield running


def use(workspace: Workspace, vendors: VendorServers, provider: str, **more: object) -> None:
    model = {"provider": provider, "name": "standard", "providers": vendors.settings(), **more}
    workspace.configure(model=model, runtime=QUICK)


@pytest.mark.parametrize("named", VENDORS)
@pytest.mark.parametrize("default", VENDORS)
def test_a_provider_in_the_model_flag_is_used(
    *, default: str, named: str, workspace: Workspace, vendors: VendorServers
) -> None:
    use(workspace, vendors, default)

    assert workspace.agent("run", "-q", "--model", f"{named}/g-x", "Hello") == 0

    assert vendors.asked == [(named, "g-x")]


@pytest.mark.parametrize("named", VENDORS)
@pytest.mark.parametrize("default", VENDORS)
def test_a_provider_in_the_model_of_an_agent_is_used(
    *, default: str, named: str, workspace: Workspace, vendors: VendorServers, capsys: Capture
) -> None:
    use(workspace, vendors, default)
    add_agent(workspace.folder, "checker", f"model: {named}/g-x")

    assert workspace.agent("run", "-q", "--agent", "checker", "Hello") == 0
    capsys.readouterr()
    assert workspace.agent("agents", "show", "checker", "--json") == 0

    shown = json.loads(capsys.readouterr().out)["model"]
    assert vendors.asked == [(named, "g-x")]
    assert (shown["provider"], shown["name"]) == (named, "g-x")


@pytest.mark.parametrize("provider", VENDORS)
@pytest.mark.parametrize(
    ("name", "sent"),
    [
        ("meta-llama/Llama-3", "meta-llama/Llama-3"),
        ("mistral/openai/x", "mistral/openai/x"),
        ("openai/meta-llama/Llama-3", "meta-llama/Llama-3"),
    ],
)
def test_only_a_known_provider_prefix_selects_a_provider(
    *, provider: str, name: str, sent: str, workspace: Workspace, vendors: VendorServers
) -> None:
    use(workspace, vendors, provider)

    assert workspace.agent("run", "-q", "--model", name, "Hello") == 0

    assert vendors.asked == [("openai" if name.startswith("openai/") else provider, sent)]


@pytest.mark.parametrize("name", ["anthropic/claude-x", "openai/gpt-oss-20b"])
def test_a_name_set_together_with_its_provider_is_sent_unchanged(
    *, name: str, workspace: Workspace, vendors: VendorServers
) -> None:
    use(workspace, vendors, "openai", name=name)

    assert workspace.agent("run", "-q", "Hello") == 0
    assert workspace.agent("run", "-q", "--provider", "openai", "--model", name, "Hello") == 0

    assert vendors.asked == [("openai", name)] * 2


def test_a_repeated_provider_prefix_is_dropped(workspace: Workspace, vendors: VendorServers) -> None:
    use(workspace, vendors, "gemini", name="gemini/g-x")

    assert workspace.agent("run", "-q", "Hello") == 0
    assert workspace.agent("run", "-q", "--provider", "gemini", "--model", "gemini/g-x", "Hello") == 0

    assert vendors.asked == [("gemini", "g-x")] * 2


def test_a_name_in_the_settings_selects_the_provider_if_none_is_set(
    workspace: Workspace, vendors: VendorServers, monkeypatch: pytest.MonkeyPatch, capsys: Capture
) -> None:
    workspace.configure(model={"name": "gemini/g-x", "providers": vendors.settings()}, runtime=QUICK)

    assert workspace.agent("run", "-q", "Hello") == 0
    monkeypatch.setenv("AGENT_MODEL_NAME", "openai/o-x")
    assert workspace.agent("run", "-q", "Hello") == 0
    capsys.readouterr()
    assert workspace.agent("config", "show", "--origin") == 0

    assert vendors.asked == [("gemini", "g-x"), ("openai", "o-x")]
    [line] = [line for line in capsys.readouterr().out.splitlines() if "model.provider " in line]
    assert "openai" in line
    assert "AGENT_MODEL_NAME" in line


def test_allowed_models_are_matched_with_their_provider(
    workspace: Workspace, vendors: VendorServers, capsys: Capture
) -> None:
    use(workspace, vendors, "openai", name="standard", allowed_models=["standard", "gemini/g-x"])

    assert workspace.agent("run", "-q", "--model", "gemini/g-x", "Hello") == 0
    assert workspace.agent("run", "-q", "--model", "anthropic/g-x", "Hello") == 2

    assert vendors.asked == [("gemini", "g-x")]
    assert "'anthropic/g-x' is not allowed here" in capsys.readouterr().err


def test_a_child_run_uses_the_provider_from_the_settings(workspace: Workspace, vendors: VendorServers) -> None:
    add_agent(workspace.folder, "router", "model: gemini/g-x", "tools: [delegate]", "profile: permissive")
    add_agent(workspace.folder, "checker", "model: c-x", "profile: permissive")
    call = {"functionCall": {"name": "delegate", "args": {"agent": "checker", "task": "Look"}}}
    vendors["gemini"].script = [
        {"candidates": [{"content": {"role": "model", "parts": [call]}, "finishReason": "STOP"}]}
    ]

    assert workspace.agent("run", "-q", "--agent", "router", "Hello") == 0

    assert vendors.asked == [("anthropic", "c-x"), ("gemini", "g-x"), ("gemini", "g-x")]


def test_forks_keep_or_change_the_provider(workspace: Workspace, vendors: VendorServers) -> None:
    add_agent(workspace.folder, "checker", "model: gemini/g-x", "allowed_models: [openai/o-x]")
    assert workspace.agent("run", "-q", "--agent", "checker", "Hello") == 0

    assert workspace.agent("replay", "latest", "--fork-at", "2") == 0
    assert workspace.agent("replay", "latest", "--fork-at", "2", "--model", "openai/o-x") == 0

    assert vendors.asked == [("gemini", "g-x"), ("gemini", "g-x"), ("openai", "o-x")]


def test_a_chat_can_switch_to_a_model_of_another_provider(
    workspace: Workspace, vendors: VendorServers, capsys: Capture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sys.stdin", StringIO("/model gemini/g-x\nHello\n/model\n"))

    assert workspace.agent("chat", "-q") == 0

    assert vendors.asked == [("gemini", "g-x")]
    assert "* gemini/g-x" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("provider", "default"),
    [("anthropic", "claude-sonnet-4-5"), ("gemini", "gemini-2.5-pro"), ("openai", "gpt-6.1-terra")],
)
@pytest.mark.parametrize("has_file", [False, True])
def test_a_provider_alone_uses_its_default_model(
    *, provider: str, default: str, has_file: bool, workspace: Workspace, vendors: VendorServers,
    monkeypatch: pytest.MonkeyPatch, capsys: Capture,
) -> None:  # fmt: skip
    other = "gemini" if provider != "gemini" else "anthropic"
    workspace.configure(**({"model": {"provider": other, "name": "g-x"}} if has_file else {}), runtime=QUICK)
    monkeypatch.setenv("AGENT_MODEL_PROVIDER", provider)

    assert workspace.agent("agents", "show", "built-in", "--json") == 0

    shown = json.loads(capsys.readouterr().out)["model"]
    assert (shown["provider"], shown["name"]) == (provider, default)


def test_provider_flag_alone_uses_the_default_model(workspace: Workspace, vendors: VendorServers) -> None:
    assert workspace.agent("run", "-q", "--provider", "gemini", "Hello") == 0

    assert vendors.asked == [("gemini", "gemini-2.5-pro")]


def test_custom_server_needs_a_model_name(workspace: Workspace, vendors: VendorServers, capsys: Capture) -> None:
    assert workspace.agent("run", "-q", "--provider", "openai", "Hello") == 2

    assert (vendors.asked, workspace.run_ids()) == ([], [])
    assert "--model NAME" in capsys.readouterr().err
