"""Limits on the `agent.yaml` of a cloned folder that the user has not trusted.

A setting is free (no security impact), ordered (it can be made stricter, but not looser), or reserved for the user.
Settings in neither list are reserved.
"""

import hashlib
import json
from collections.abc import Mapping
from typing import NamedTuple

from metier.definitions.names import canonical_name
from metier.definitions.problems import Problem
from metier.settings.keys import all_leaves
from metier.settings.setting_values import Given, Layer, Origin

PROFILE = "runtime.profile"
ENABLED_SKILLS = "skills.enabled"
UNTRUSTED_PROFILE = "guarded"
"""Profile of an untrusted folder if the user has not set one."""

# No address of a provider is free, because the user's key would be sent there, nor is anything that starts a program.
FREE = frozenset(
    {
        "model.provider",
        "model.name",
        "model.fallback_models",
        "model.max_tokens",
        "model.temperature",
        "model.max_context_tokens",
        "model.response_headroom_tokens",
        "model.structured_output_mode",
        "model.timeout_seconds",
        "model.providers.openai.api",
        "runtime.agent",
        "runtime.timeout_seconds",
        "runtime.max_turns",
        "runtime.max_llm_retries",
        "runtime.retry_base_delay_seconds",
        "runtime.retry_max_delay_seconds",
        "runtime.on_limit",
        "runtime.on_step_failure",
        "runtime.max_children_per_call",
        "runtime.max_delegation_depth",
        "runtime.max_parallel_children",
        "runtime.delegation_share",
        "runtime.approval_expiry_hours",
        "runtime.signal_grace_seconds",
        "skills.prefilter_top_k",
        "skills.prefilter_min_score",
        "skills.prefilter_zero_candidate_strategy",
        "skills.disclosure_max_reference_bytes",
        "skills.disclosure_max_reference_tokens",
        "skills.inline_body_tokens",
        "skills.script_timeout_seconds",
        "skills.max_script_output_bytes",
        "shell.timeout_ms",
        "shell.max_output_chars",
        # Free, because a server starts only after the user has accepted it.
        "mcp.file",
        "mcp.servers",
        "mcp.start_timeout_seconds",
        "mcp.call_timeout_seconds",
        "mcp.max_message_bytes",
        "web_search.max_results",
        "chat.summarize_at_tokens",
        "chat.summary_model",
        "chat.while_working",
        "worker.queue",
        "worker.concurrency",
        "worker.lease_seconds",
        "worker.turns_per_task",
        "worker.timeout_seconds",
        "worker.max_attempts",
        "worker.max_deaths",
        "worker.autostart",
        "worker.idle_seconds",
        "worker.sweep_seconds",
        "logging.level",
        "logging.run_id_pattern",
        "logging.shard",
        "plugins.timeout_seconds",
    }
)
"""Settings without security impact: a task text or a skill could have the same effect."""

ORDERED: Mapping[str, tuple[str, ...]] = {
    PROFILE: ("permissive", "guarded", "strict"),
    "sandbox.use": ("off", "auto", "required"),
    "sandbox.network": ("on", "auto", "off"),
    "shell.enabled": ("true", "false"),
    "shell.mode": ("full", "allowlist", "off"),
    "shell.cwd": ("any", "workspace"),
    "plugins.enabled": ("all", "none"),
    "logging.redact_secrets": ("false", "true"),
    "logging.sanitize_control_chars": ("false", "true"),
    "logging.debug_llm_bodies": ("true", "false"),
}
"""Values from the loosest to the strictest."""

LOWERED = frozenset(
    {
        "runtime.max_cost_usd",
        "sandbox.cpu_seconds",
        "sandbox.memory_mb",
        "sandbox.processes",
        "sandbox.file_size_mb",
    }
)
"""Limits: a lower one is stricter, and none is the loosest."""
_SKILL_WORDS = frozenset({"all", "all-untrusted"})
_SWITCHES = {"yes": "true", "on": "true", "no": "false", "off": "false"}


class Narrowed(NamedTuple):
    values: Layer
    withheld: tuple[str, ...]
    """Keys of ignored settings."""


def digest_words(carried: Layer) -> str:
    """Return a digest of the settings that need trust, without free ones, which may change."""
    words = {key: given.value for key, given in carried.items() if key not in FREE}
    # Sorted, because moving a setting within the file must not end the trust.
    return hashlib.sha256(json.dumps(words, sort_keys=True).encode()).hexdigest()


def narrow(carried: Layer, own: Layer) -> Narrowed:
    """Merge the folder's free settings and stricter values with the user's values for the rest."""
    values = {key: given for key, given in own.items() if key not in FREE}
    withheld: list[str] = []
    for key, given in carried.items():
        if key in FREE or _is_stricter(key, given, values.get(key)):
            values[key] = given
        # A value that equals the user's changes nothing, so there is nothing to report.
        elif _text(key, given) != _text(key, values.get(key)):
            withheld.append(key)
    return Narrowed(values, tuple(withheld))


def set_profile(own: Layer) -> Layer:
    """Add the profile for untrusted folders if the settings have none."""
    return {PROFILE: Given(UNTRUSTED_PROFILE, Origin(kind="default")), **own}


def describe_withheld(carried: Layer, keys: tuple[str, ...]) -> list[Problem]:
    return [
        Problem(
            severity="warning",
            code="setting_withheld",
            message=f"'{key}' does not count: this folder came from elsewhere, and you have not trusted what it says",
            file=carried[key].origin.file,
            line=carried[key].origin.line,
            hint="Read the file, then run `agent trust`",
        )
        for key in keys
    ]


def _is_stricter(key: str, given: Given, held: Given | None) -> bool:
    """Return True if a value is at least as strict as the user's."""
    if key in ORDERED:
        order, new, old = ORDERED[key], _text(key, given), _text(key, held)
        # A value of the user that has no place in the order counts as the strictest.
        least = order.index(old) if old in order else len(order) - 1
        return new in order and order.index(new) >= least
    if key in LOWERED:
        new_limit, old_limit = _limit(_text(key, given)), _limit(_text(key, held))
        return new_limit is not None and (old_limit is None or new_limit <= old_limit)
    if key == ENABLED_SKILLS:
        return _is_part(_names(_text(key, given)), _names(_text(key, held)))
    # A file replaces a list as a whole, so it could only remove names that the user wrote.
    if key == "logging.redact_names":
        return held is None
    if key == "model.allowed_models":
        return held is None and bool(given.value)
    return False


def _is_part(names: frozenset[str], whole: frozenset[str]) -> bool:
    """Return True if every selected skill is part of the other selection."""
    return names <= whole or ("all" in whole and not names & _SKILL_WORDS)


def _names(text: str) -> frozenset[str]:
    """Return the names in a selection, including keywords other than `none`."""
    words: list[str] = json.loads(text) if text.startswith("[") else [text]
    return frozenset(canonical_name(word) for word in words if word != "none")


def _text(key: str, given: Given | None) -> str:
    """Return a value, by default that of the setting, as text."""
    if given is None:
        default = all_leaves()[key].default
        return default if isinstance(default, str) else json.dumps(default)
    if not isinstance(given.value, str):
        return json.dumps(given.value)
    word = given.value.strip()
    return _SWITCHES.get(word.lower(), word.lower()) if all_leaves()[key].is_bool else word


def _limit(text: str) -> float | None:
    try:
        return float(text)
    except ValueError:
        return None
