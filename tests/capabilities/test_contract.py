"""The meaning of a contract in front matter, and the messages about an invalid one."""

import json
from pathlib import Path

import pytest
from capability_skills import write_skill

from metier.capabilities.contract import SideEffects, SkillContract
from metier.capabilities.contract_reader import ContractReading, read_contract
from metier.cli.main import run
from metier.definitions.skills.skill import load_skill

WHOLE = """
interaction_outcomes:
  allowed_intermediate_states: [input_required, delegating]
  max_turns: 4
  supports_resume: true
  input_request_schema:
    - name: source_type
      type: string
      description: "TYPE1 or TYPE2"
      required: true
      enum: [TYPE1, TYPE2]
    - depth
state_persistence: full_events
input_request_jsonschema:
  type: object
  properties:
    depth: {type: integer, maximum: 20}
    source_type: {type: string, enum: [TYPE1, "2"]}
  required: [source_type]
  additionalProperties: false
input_schema: {type: object}
output_schema: {type: object, required: [schema]}
execution_mode: hybrid
autonomy_level: implement
side_effects:
  kinds: [writes_files, network]
  repeat: keyed
  paths: [docs/**]
timeout_seconds: 30
max_fix_iterations: 2
required_artifacts: [schema.json]
failure_modes:
  - no_data
  - {code: busy, description: The server is busy, retryable: true}
depends_on: [Other_Skill]
sync_celery: {compatible: true}
"""


def read(folder: Path, contract: str, *, strict: bool = True) -> ContractReading:
    skill = load_skill(write_skill(folder, "sample", contract=contract)).skill
    assert skill is not None
    return read_contract(skill, strict=strict)


def told(reading: ContractReading) -> list[tuple[str, str, int | None]]:
    return [(problem.severity, problem.code, problem.line) for problem in reading.problems]


def test_every_field_of_a_contract_is_read_with_its_type(tmp_path: Path) -> None:
    reading = read(tmp_path, WHOLE)

    assert reading.problems == ()
    contract = reading.contract
    assert contract is not None
    assert contract.interaction.allowed_intermediate_states == ("input_required", "delegating")
    assert contract.interaction.max_turns == 4
    assert [(field.name, field.enum) for field in contract.interaction.input_request_schema] == [
        ("source_type", ("TYPE1", "TYPE2")),
        ("depth", ()),
    ]
    assert contract.input_request_jsonschema == {
        "type": "object",
        "properties": {
            "depth": {"type": "integer", "maximum": 20},
            "source_type": {"type": "string", "enum": ["TYPE1", "2"]},
        },
        "required": ["source_type"],
        "additionalProperties": False,
    }
    assert contract.side_effects == SideEffects(kinds=("writes_files", "network"), repeat="keyed", paths=("docs/**",))
    assert (contract.effect, contract.risk, contract.execution_mode) == ("keyed", "medium", "hybrid")
    assert (contract.timeout_seconds, contract.max_fix_iterations) == (30, 2)
    assert (contract.required_artifacts, contract.depends_on) == (("schema.json",), ("other-skill",))
    assert [(mode.code, mode.retryable) for mode in contract.failure_modes] == [("no_data", False), ("busy", True)]
    assert contract.state_persistence == "full_events"


def test_skill_without_a_contract_is_a_read_only_one_shot_tool(tmp_path: Path) -> None:
    assert read(tmp_path, "").contract == SkillContract(skill="sample")


@pytest.mark.parametrize(
    ("field", "code"),
    [
        ("execution_mode: hybird", "bad_value"),
        ("autonomy_level: god", "bad_value"),
        ("state_persistence: everything", "bad_value"),
        ("timeout_seconds: 0", "bad_value"),
        ("timeout_seconds: soon", "bad_value"),
        ("max_fix_iterations: 4", "bad_value"),
        ("side_effects: [writes_file]", "bad_value"),
        ("interaction_outcomes: yes", "not_a_mapping"),
        ("interaction_outcomes:\n  max_turns: 21", "bad_value"),
        ("interaction_outcomes:\n  max_turn: 2", "unknown_key"),
        ("interaction_outcomes:\n  allowed_intermediate_states: [waiting]", "bad_value"),
        ("interaction_outcomes:\n  supports_resume: perhaps", "bad_value"),
        ("failure_modes: broken", "not_a_list"),
        ("failure_modes: [{description: x}]", "missing_code"),
        ("required_artifacts: [../out]", "contract_path"),
        ("input_schema: text", "contract_schema"),
        ("input_schema: {type: strnig}", "contract_schema"),
        ("output_schema:\n  $ref: https://example.com/s.json", "contract_schema"),
        ("output_schema:\n  properties: {a: {$ref: other.json}}", "contract_schema"),
        ("output_schema:\n  $schema: http://json-schema.org/draft-04/schema#", "contract_schema"),
        ("sync_celery: maybe", "bad_value"),
        ("contract: text", "unknown_key"),
        ("contract: {execution_modes: hybrid}", "unknown_key"),
        (
            "interaction_outcomes:\n  allowed_intermediate_states: [paused]\nstate_persistence: none",
            "contract_conflict",
        ),
        ("execution_mode: advisor_only\nautonomy_level: commit\nside_effects: [network]", "contract_conflict"),
        ("side_effects: [writes_files]", "contract_conflict"),
        ("autonomy_level: suggest\nside_effects: [runs_programs]", "contract_conflict"),
        ("depends_on: [sample]", "contract_conflict"),
    ],
)
def test_invalid_field_is_an_error_in_an_own_skill_and_a_warning_in_a_foreign_one(
    tmp_path: Path, field: str, code: str
) -> None:
    strict, lenient = read(tmp_path, field), read(tmp_path, field, strict=False)

    assert [problem.code for problem in strict.problems] == [code]
    assert strict.contract is None
    assert (strict.problems[0].line or 0) >= 4
    assert strict.problems[0].file.endswith("SKILL.md")
    assert lenient.contract is not None
    assert all(problem.severity == "warning" for problem in lenient.problems)


def test_invalid_value_in_a_foreign_skill_gets_its_most_restrictive_meaning(tmp_path: Path) -> None:
    contract = read(
        tmp_path,
        "side_effects: [writes_file]\nautonomy_level: all\ninteraction_outcomes:\n  max_turns: 500\n"
        "  allowed_intermediate_states: [input_required, bored]\nexecution_mode: magic",
        strict=False,
    ).contract

    assert contract is not None
    assert contract.autonomy_level == "read"
    assert contract.side_effects.kinds == ("network",)
    assert contract.effect == "opaque"
    assert contract.interaction.max_turns == 20
    assert contract.interaction.allowed_intermediate_states == ("input_required",)
    assert contract.execution_mode == "deterministic"


def test_nested_schema_error_is_reported_with_its_own_line(tmp_path: Path) -> None:
    reading = read(tmp_path, "input_schema:\n  type: object\n  properties:\n    a:\n      type: strnig")

    assert told(reading) == [("error", "contract_schema", 8)]


def test_fields_may_be_grouped_below_contract(tmp_path: Path) -> None:
    contract = read(tmp_path, "contract:\n  timeout_seconds: 9\n  execution_mode: hybrid").contract

    assert contract is not None
    assert (contract.timeout_seconds, contract.execution_mode) == (9, "hybrid")


def test_validate_checks_a_skill_with_code_against_its_contract(
    workspace: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    write_skill(workspace / "skills", "loose", contract="execution_mode: magic", impl=None)
    write_skill(workspace / "skills", "bound", contract="execution_mode: magic")
    write_skill(workspace / "skills", "empty", impl="async def execute(context):\n    return {}\n")

    assert run(["skills", "validate", "skills/loose"]) == 0
    assert run(["skills", "validate", "skills/bound", "--json"]) == 1
    out = capsys.readouterr().out
    assert (
        "warning: Field 'execution_mode' must be 'deterministic', 'hybrid' or 'advisor_only', not 'magic' [bad_value]"
        in out
    )
    assert run(["skills", "validate", "skills/empty"]) == 1
    out = capsys.readouterr().out
    assert "impl_without_execute" in out
    assert "async_def" in out


def test_project_check_includes_contracts(workspace: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write_skill(workspace / ".agent" / "skills", "bound", contract="max_fix_iterations: 9")

    assert run(["validate"]) == 1

    assert "SKILL.md:4: error: Field 'max_fix_iterations' must be a whole number from 0 to 3" in capsys.readouterr().out


def test_contracts_lists_the_contracts_of_active_skills(workspace: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write_skill(workspace / "skills", "plain", impl=None)
    write_skill(workspace / "skills", "whole", contract=WHOLE)

    assert run(["skills", "contracts"]) == 0
    shown = capsys.readouterr()
    assert shown.out == (
        "whole  hybrid  autonomy implement  effects writes_files, network (keyed)  "
        "states input_required, delegating in 4 turns  keeps full_events  30s\n"
    )
    assert "names the skill 'other-skill', which is not there" in shown.err

    assert run(["skills", "contracts", "--json"]) == 0
    (row,) = json.loads(capsys.readouterr().out)
    assert row["callable"] is True
    assert row["effect"] == "keyed"
    assert row["contract"]["interaction"]["max_turns"] == 4


def test_contracts_names_a_skill_with_an_invalid_contract(workspace: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write_skill(workspace / "skills", "wrong", contract="execution_mode: magic")

    assert run(["skills", "contracts"]) == 1

    shown = capsys.readouterr()
    assert shown.out == "wrong  invalid contract\n"
    assert "SKILL.md:4: error" in shown.err
