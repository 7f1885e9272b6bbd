"""The names of spans, metrics and attributes. Only this module spells a `gen_ai.` or `metier.` name.

The GenAI conventions are in development: renamed attributes change here, together with `REVISION`.
"""

REVISION = "opentelemetry-util-genai 1.3b0"
"""The package that defines these names; the conventions have no release of their own yet."""
SCHEMA_URL = "https://opentelemetry.io/schemas/1.44.0"
SCOPE = "metier"

# Operations: the value of `gen_ai.operation.name` and the first part of a span's name.
INVOKE_AGENT = "invoke_agent"
INVOKE_WORKFLOW = "invoke_workflow"
CHAT = "chat"
EXECUTE_TOOL = "execute_tool"

# Operations that the conventions don't define.
LOAD_SKILLS = "load_skills"
RUN_SCRIPT = "run_script"
AWAIT_APPROVAL = "await_approval"
AWAIT_INPUT = "await_input"
AWAIT_WORKER = "await_worker"

OPERATION = "gen_ai.operation.name"
PROVIDER = "gen_ai.provider.name"
REQUEST_MODEL = "gen_ai.request.model"
RESPONSE_MODEL = "gen_ai.response.model"
RESPONSE_ID = "gen_ai.response.id"
FINISH_REASONS = "gen_ai.response.finish_reasons"
AGENT_NAME = "gen_ai.agent.name"
AGENT_ID = "gen_ai.agent.id"
WORKFLOW_NAME = "gen_ai.workflow.name"
CONVERSATION_ID = "gen_ai.conversation.id"
INPUT_TOKENS = "gen_ai.usage.input_tokens"
OUTPUT_TOKENS = "gen_ai.usage.output_tokens"
CACHE_READ_TOKENS = "gen_ai.usage.cache_read.input_tokens"
CACHE_WRITE_TOKENS = "gen_ai.usage.cache_write.input_tokens"
REASONING_TOKENS = "gen_ai.usage.reasoning.output_tokens"
TOOL_NAME = "gen_ai.tool.name"
TOOL_TYPE = "gen_ai.tool.type"
TOOL_CALL_ID = "gen_ai.tool.call.id"
TOKEN_TYPE = "gen_ai.token.type"  # noqa: S105
ERROR_TYPE = "error.type"
SERVER_ADDRESS = "server.address"
SERVER_PORT = "server.port"

# Content, only exported if `OTEL_INSTRUMENTATION_GENAI_CAPTURE_MESSAGE_CONTENT` is set.
INPUT_MESSAGES = "gen_ai.input.messages"
OUTPUT_MESSAGES = "gen_ai.output.messages"
TOOL_ARGUMENTS = "gen_ai.tool.call.arguments"
TOOL_RESULT = "gen_ai.tool.call.result"
JSON_CONTENT = frozenset({INPUT_MESSAGES, OUTPUT_MESSAGES, TOOL_ARGUMENTS})

RUN_ID = "metier.run.id"
PARENT_RUN_ID = "metier.run.parent_id"
RUN_STATUS = "metier.run.status"
RUN_MODE = "metier.run.mode"
RUN_PROFILE = "metier.run.profile"
RUN_TURNS = "metier.run.turns"
RUN_RESUMES = "metier.run.resumes"
COST_USD = "metier.cost.usd"
TURN = "metier.turn"
STEP_ID = "metier.step.id"
STEP_STATUS = "metier.step.status"
STEP_ATTEMPT = "metier.step.attempt"
STEP_EFFECT = "metier.step.effect"
STEP_VERDICT = "metier.step.verdict"
SKILL = "metier.skill.name"
SCRIPT = "metier.script.name"
CHILD_RUN_ID = "metier.child_run.id"
APPROVAL_DECISION = "metier.approval.decision"
EXIT_CODE = "process.exit.code"
STDOUT_BYTES = "metier.process.stdout.bytes"
STDERR_BYTES = "metier.process.stderr.bytes"
DURATION_MS = "metier.duration_ms"
TRUNCATED = "metier.output.truncated"

# Names that dashboards for skills expect, in addition to the equivalent names of steps above.
SKILL_NAME = "skill.name"
SKILL_SCRIPT = "skill.script"
SKILL_DURATION_MS = "skill.execution.duration_ms"
SKILL_STATUS = "skill.execution.status"
SKILL_ERROR_TYPE = "skill.error_type"
SKILL_STDOUT_BYTES = "skill.stdout_bytes"
SKILL_STDERR_BYTES = "skill.stderr_bytes"
SKILL_NAMES = "skill.names"
SKILL_COUNT = "skill.count"
SKILL_PROBLEMS = "skill.problems"

PROVIDERS = {"gemini": "gcp.gemini"}
"""Providers with another name in the conventions."""

OPERATION_DURATION = "gen_ai.client.operation.duration"
TOKEN_USAGE = "gen_ai.client.token.usage"  # noqa: S105
TOOL_DURATION = "gen_ai.execute_tool.duration"
AGENT_DURATION = "gen_ai.invoke_agent.duration"
WORKFLOW_DURATION = "gen_ai.invoke_workflow.duration"
DURATION_BUCKETS = (0.01, 0.02, 0.04, 0.08, 0.16, 0.32, 0.64, 1.28, 2.56, 5.12, 10.24, 20.48, 40.96, 81.92)
TOKEN_BUCKETS = (
    1, 4, 16, 64, 256, 1024, 4096, 16384, 65536, 262144, 1048576, 4194304, 16777216, 67108864
)  # fmt: skip


def name_provider(provider: str) -> str:
    return PROVIDERS.get(provider, provider)
