"""The tables of the PostgreSQL store and their migrations: forward only, under a lock, in one transaction."""

from typing import LiteralString

import psycopg
from psycopg.rows import TupleRow

from metier.store.failures import StoreUnavailable

type Connection = psycopg.AsyncConnection[TupleRow]

# Collation "C" compares bytes: prefix searches and the bounds of partitions rely on it. The free space in the pages of
# `agent_leases` lets a renewal replace its row in place, without touching the index. JSON, not JSONB, which rejects NUL
# and lone surrogates.
_FIRST: LiteralString = """
CREATE TABLE agent_runs (
    number BIGINT GENERATED ALWAYS AS IDENTITY UNIQUE,
    run_id TEXT COLLATE "C" PRIMARY KEY,
    context_id TEXT NOT NULL,
    status TEXT NOT NULL,
    task TEXT NOT NULL,
    agent TEXT NOT NULL,
    model TEXT NOT NULL,
    parent_run_id TEXT NOT NULL,
    created_at TIMESTAMPTZ NOT NULL,
    updated_at TIMESTAMPTZ NOT NULL,
    turns INTEGER NOT NULL,
    cost_usd DOUBLE PRECISION NOT NULL,
    reason TEXT NOT NULL,
    queue TEXT NOT NULL  -- empty: the process that started it drives it
);
CREATE INDEX agent_runs_by_context ON agent_runs (context_id, number);
CREATE INDEX agent_runs_by_status ON agent_runs (status, number);
CREATE INDEX agent_runs_to_claim ON agent_runs (queue, number)
    WHERE queue <> '' AND status IN ('pending', 'in_progress');

CREATE TABLE agent_journal (
    run_id TEXT COLLATE "C" NOT NULL,
    seq BIGINT NOT NULL,
    kind TEXT NOT NULL,
    data BYTEA NOT NULL,
    checksum BIGINT NOT NULL,
    PRIMARY KEY (run_id, seq)
);

-- One row a run, from its beginning: a writer locks it, so that no other process takes over in between.
CREATE TABLE agent_leases (
    run_id TEXT COLLATE "C" PRIMARY KEY,
    owner TEXT NOT NULL,  -- empty: no process drives
    token BIGINT NOT NULL,
    since TIMESTAMPTZ,
    until TIMESTAMPTZ,
    boot_id TEXT NOT NULL,
    process TEXT NOT NULL,
    watched_until TIMESTAMPTZ  -- a process listens for new entries until then
) WITH (fillfactor = 70);
CREATE SEQUENCE agent_fencing;

CREATE TABLE agent_approvals (
    number BIGINT GENERATED ALWAYS AS IDENTITY UNIQUE,
    approval_id TEXT PRIMARY KEY,
    run_id TEXT NOT NULL,
    step_id TEXT NOT NULL,
    payload BYTEA NOT NULL,
    created_at TIMESTAMPTZ NOT NULL,
    expires_at TIMESTAMPTZ,
    status TEXT NOT NULL,
    decided_by TEXT NOT NULL,
    reason TEXT NOT NULL,
    edited_payload BYTEA
);
CREATE INDEX agent_approvals_by_run ON agent_approvals (run_id, number);
CREATE INDEX agent_approvals_by_status ON agent_approvals (status, number);
CREATE TABLE agent_approval_attempts (
    number BIGINT GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    run_id TEXT NOT NULL,
    approval_id TEXT NOT NULL,
    status TEXT NOT NULL,
    decided_by TEXT NOT NULL,
    reason TEXT NOT NULL,
    at TIMESTAMPTZ NOT NULL,
    counted BOOLEAN NOT NULL
);
CREATE INDEX agent_approval_attempts_by_approval ON agent_approval_attempts (approval_id, number);
CREATE INDEX agent_approval_attempts_by_run ON agent_approval_attempts (run_id);

CREATE TABLE agent_blobs (
    digest TEXT PRIMARY KEY,
    size BIGINT NOT NULL,
    put_at TIMESTAMPTZ NOT NULL  -- the last time these bytes were put
);
CREATE TABLE agent_blob_parts (
    digest TEXT NOT NULL REFERENCES agent_blobs ON DELETE CASCADE,
    part INTEGER NOT NULL,
    data BYTEA NOT NULL,
    PRIMARY KEY (digest, part)
);
CREATE TABLE agent_blob_names (
    run_id TEXT NOT NULL,  -- the run whose journal or approvals name the blob
    digest TEXT NOT NULL,
    PRIMARY KEY (run_id, digest)
);
CREATE INDEX agent_blob_names_by_digest ON agent_blob_names (digest);

-- What was committed of late: a commit whose answer was lost with the connection is looked up here.
CREATE TABLE agent_commits (
    commit_id TEXT PRIMARY KEY,
    at TIMESTAMPTZ NOT NULL
);
CREATE INDEX agent_commits_by_time ON agent_commits (at);

CREATE TABLE agent_context_state (
    context_id VARCHAR(255) PRIMARY KEY,
    current_turn INTEGER NOT NULL DEFAULT 1,
    task_state VARCHAR(50) NOT NULL DEFAULT 'pending',
    summary TEXT NOT NULL DEFAULT '',
    summarized_to BIGINT NOT NULL DEFAULT 0,
    last_event BIGINT NOT NULL DEFAULT 0,
    version INTEGER NOT NULL DEFAULT 0,
    resume_token VARCHAR(64) NOT NULL DEFAULT '',  -- digest of the token that led to this version; empty: none did
    agent_state_detail TEXT NOT NULL DEFAULT '',
    input_request_payload JSON NOT NULL DEFAULT 'null',
    created_at TIMESTAMPTZ NOT NULL,
    updated_at TIMESTAMPTZ NOT NULL
);
CREATE INDEX agent_contexts_by_change ON agent_context_state (updated_at DESC);

CREATE TABLE agent_conversation_events (
    context_id VARCHAR(255) NOT NULL REFERENCES agent_context_state ON DELETE CASCADE,
    number BIGINT NOT NULL,
    event_type TEXT NOT NULL,
    payload JSON NOT NULL,
    timestamp TIMESTAMPTZ NOT NULL,
    turn_number INTEGER NOT NULL,
    agent_id TEXT NOT NULL,
    message_id TEXT,
    PRIMARY KEY (context_id, number),
    UNIQUE (context_id, message_id)
);

CREATE TABLE agent_pocket_facts (
    context_id VARCHAR(255) NOT NULL REFERENCES agent_context_state ON DELETE CASCADE,
    bucket TEXT NOT NULL,
    key TEXT COLLATE "C" NOT NULL,
    value JSON NOT NULL,
    timestamp TIMESTAMPTZ NOT NULL,
    ttl_seconds DOUBLE PRECISION,
    expires_at TIMESTAMPTZ,
    PRIMARY KEY (context_id, bucket, key)
);
CREATE INDEX agent_facts_by_expiry ON agent_pocket_facts (expires_at) WHERE expires_at IS NOT NULL;

CREATE TABLE agent_messages (
    context_id VARCHAR(255) NOT NULL REFERENCES agent_context_state ON DELETE CASCADE,
    message_id TEXT NOT NULL,
    is_done BOOLEAN NOT NULL,
    result JSON NOT NULL,
    owner TEXT NOT NULL,  -- empty: no worker has claimed it
    token BIGINT NOT NULL,
    until TIMESTAMPTZ NOT NULL,
    boot_id TEXT NOT NULL,
    process TEXT NOT NULL,
    PRIMARY KEY (context_id, message_id)
);
"""

_SECOND: LiteralString = """
ALTER TABLE agent_runs ADD COLUMN ending TEXT NOT NULL DEFAULT '';  -- a pending request to end it
"""

_THIRD: LiteralString = """
CREATE INDEX agent_runs_by_end ON agent_runs (updated_at, number)
    WHERE status IN ('completed', 'failed', 'timeout', 'escalated', 'canceled');
CREATE INDEX agent_runs_by_queue ON agent_runs (queue, status, number) WHERE queue <> '';
CREATE INDEX agent_approvals_by_id ON agent_approvals (approval_id COLLATE "C");
"""

# The old table becomes the default partition, without copying or reading anything.
_FOURTH: LiteralString = """
ALTER TABLE agent_journal RENAME TO agent_journal_rest;
ALTER INDEX agent_journal_pkey RENAME TO agent_journal_rest_pkey;
CREATE TABLE agent_journal (
    run_id TEXT COLLATE "C" NOT NULL,
    seq BIGINT NOT NULL,
    kind TEXT NOT NULL,
    data BYTEA NOT NULL,
    checksum BIGINT NOT NULL,
    PRIMARY KEY (run_id, seq)
) PARTITION BY RANGE (run_id);
ALTER TABLE agent_journal ATTACH PARTITION agent_journal_rest DEFAULT;
"""

_SCHEDULES: LiteralString = """
CREATE TABLE agent_schedules (
    queue TEXT NOT NULL,
    name TEXT NOT NULL,
    definition TEXT NOT NULL,  -- empty: a file of the workspace defines it
    is_paused BOOLEAN NOT NULL,
    created_at TIMESTAMPTZ NOT NULL,
    PRIMARY KEY (queue, name)
);
CREATE TABLE agent_schedule_marks (
    queue TEXT NOT NULL,
    name TEXT NOT NULL,
    timing TEXT NOT NULL,
    since TIMESTAMPTZ NOT NULL,
    decided_to TIMESTAMPTZ NOT NULL,
    PRIMARY KEY (queue, name, timing)
);
CREATE TABLE agent_schedule_firings (
    queue TEXT NOT NULL,
    name TEXT NOT NULL,
    due_at TIMESTAMPTZ NOT NULL,
    outcome TEXT NOT NULL,
    run_id TEXT NOT NULL,
    reason TEXT NOT NULL,
    decided_at TIMESTAMPTZ NOT NULL,
    is_open BOOLEAN NOT NULL,
    PRIMARY KEY (queue, name, due_at)
);
CREATE INDEX agent_schedule_firings_open ON agent_schedule_firings (queue, due_at) WHERE is_open;
"""

_SEARCH: LiteralString = """
ALTER TABLE agent_runs ADD COLUMN skill TEXT NOT NULL DEFAULT '';
ALTER TABLE agent_runs ADD COLUMN task_id TEXT NOT NULL DEFAULT '';
CREATE INDEX agent_runs_by_agent ON agent_runs (agent, number);
CREATE INDEX agent_runs_by_model ON agent_runs (model, number);
CREATE INDEX agent_runs_by_skill ON agent_runs (skill, number);
CREATE INDEX agent_runs_by_task ON agent_runs (task_id, number);
"""

_OUTBOX: LiteralString = """
CREATE TABLE agent_outbox (
    key TEXT PRIMARY KEY,
    queue TEXT NOT NULL,
    channel TEXT NOT NULL,
    run_id TEXT NOT NULL,
    seq BIGINT NOT NULL,
    payload TEXT NOT NULL,
    created_at TIMESTAMPTZ NOT NULL,
    due_at TIMESTAMPTZ NOT NULL,
    attempts INTEGER NOT NULL,
    state TEXT NOT NULL,
    reason TEXT NOT NULL
);
CREATE INDEX agent_outbox_open ON agent_outbox (queue, due_at) WHERE state = 'open';
"""

_RECEIVERS: LiteralString = """
CREATE TABLE agent_receivers (
    run_id TEXT COLLATE "C" NOT NULL,
    name TEXT COLLATE "C" NOT NULL,
    data TEXT NOT NULL,
    PRIMARY KEY (run_id, name)
);
"""

# A separate table that is written once, because a row of the run index is rewritten on every turn. Only ASCII letters
# are folded, as in searches. With the extension pg_trgm, words have an index. Without it, or for fewer than three
# letters, this narrow table is scanned instead of the wide one.
_WORDS: LiteralString = """
CREATE TABLE agent_run_words (
    run_id TEXT COLLATE "C" PRIMARY KEY REFERENCES agent_runs ON DELETE CASCADE,
    words TEXT COLLATE "C" NOT NULL
);
INSERT INTO agent_run_words SELECT run_id, lower((task || ' ' || run_id) COLLATE "C") FROM agent_runs;
CREATE FUNCTION agent_note_words() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    INSERT INTO agent_run_words VALUES (NEW.run_id, lower((NEW.task || ' ' || NEW.run_id) COLLATE "C"));
    RETURN NULL;
END $$;
CREATE TRIGGER agent_note_words AFTER INSERT ON agent_runs FOR EACH ROW EXECUTE FUNCTION agent_note_words();
DO $$
BEGIN
    CREATE EXTENSION IF NOT EXISTS pg_trgm;
EXCEPTION WHEN OTHERS THEN
    RAISE NOTICE 'pg_trgm is not available: %', SQLERRM;
END $$;
DO $$
BEGIN
    CREATE INDEX agent_run_words_by_part ON agent_run_words USING gin (words gin_trgm_ops);
EXCEPTION WHEN OTHERS THEN
    RAISE NOTICE 'words are found by reading them all: %', SQLERRM;
END $$;
"""

_TOKENS: LiteralString = """
ALTER TABLE agent_runs ADD COLUMN tokens BIGINT NOT NULL DEFAULT 0;
"""

# Hashed ids have no day. If these runs were in the rest, it would soon be too large to add partitions for days.
_HASHED: LiteralString = """
DO $$
DECLARE
    kind TEXT;
BEGIN
    IF pg_relation_size('agent_journal_rest') > 1000000000 THEN
        RETURN;
    END IF;
    FOREACH kind IN ARRAY ARRAY['child', 'a2a'] LOOP
        EXECUTE format('CREATE TABLE agent_journal_%s (LIKE agent_journal INCLUDING ALL)', kind);
        EXECUTE format(
            'WITH moved AS (DELETE FROM agent_journal_rest WHERE run_id >= %L AND run_id < %L RETURNING *)'
            ' INSERT INTO agent_journal_%s SELECT * FROM moved', kind || '-', kind || '.', kind
        );
        EXECUTE format(
            'ALTER TABLE agent_journal ATTACH PARTITION agent_journal_%s FOR VALUES FROM (%L) TO (%L)',
            kind, kind || '-', kind || '.'
        );
    END LOOP;
END $$;
"""

_USAGE: LiteralString = """
CREATE TABLE agent_run_usage (
    run_id TEXT COLLATE "C" NOT NULL,
    hour TEXT COLLATE "C" NOT NULL,
    model TEXT COLLATE "C" NOT NULL,
    skill TEXT COLLATE "C" NOT NULL,
    calls BIGINT NOT NULL,
    input_tokens BIGINT NOT NULL,
    cached_tokens BIGINT NOT NULL,
    output_tokens BIGINT NOT NULL,
    cost_usd DOUBLE PRECISION NOT NULL,
    unpriced_calls BIGINT NOT NULL,
    PRIMARY KEY (run_id, hour, model, skill)
);
CREATE TABLE agent_usage_totals (
    dimension TEXT COLLATE "C" NOT NULL,
    grain TEXT COLLATE "C" NOT NULL,
    period TEXT COLLATE "C" NOT NULL,
    name TEXT COLLATE "C" NOT NULL,
    calls BIGINT NOT NULL,
    input_tokens BIGINT NOT NULL,
    cached_tokens BIGINT NOT NULL,
    output_tokens BIGINT NOT NULL,
    cost_usd DOUBLE PRECISION NOT NULL,
    unpriced_calls BIGINT NOT NULL,
    PRIMARY KEY (dimension, grain, period, name)
);
ALTER TABLE agent_runs ADD COLUMN has_usage BOOLEAN NOT NULL DEFAULT FALSE;
CREATE INDEX agent_runs_without_usage ON agent_runs (number) WHERE NOT has_usage;
CREATE INDEX agent_runs_by_creation ON agent_runs (created_at, status, run_id);
"""

# Large blobs are written in several transactions.
_WHOLE_BLOBS: LiteralString = """
ALTER TABLE agent_blobs ADD COLUMN is_whole BOOLEAN NOT NULL DEFAULT TRUE;
"""

MIGRATIONS: tuple[LiteralString, ...] = (
    _FIRST,
    _SECOND,
    _THIRD,
    _FOURTH,
    _SCHEDULES,
    _SEARCH,
    _OUTBOX,
    _RECEIVERS,
    _WORDS,
    _TOKENS,
    _HASHED,
    _USAGE,
    _WHOLE_BLOBS,
)
"""Step N migrates version N to N + 1. A released step is never changed."""

_LOCK = 7_265_118_301_442
"""Advisory lock of migrations: an arbitrary number, the same in every version."""


async def migrate(connection: Connection, shown: str, *, steps: tuple[LiteralString, ...] = MIGRATIONS) -> None:
    """Migrate the tables. If several processes start at the same time, one migrates and the others wait."""
    # Usually nothing is to be done, so processes that start at the same time don't wait for each other.
    if await _read_version(connection) == len(steps):
        return
    async with connection.transaction():
        await connection.execute("SELECT pg_advisory_xact_lock(%s)", (_LOCK,))
        await connection.execute(
            "CREATE TABLE IF NOT EXISTS agent_schema_version"
            " (version INTEGER PRIMARY KEY, applied_at TIMESTAMPTZ NOT NULL DEFAULT now())"
        )
        # Read again: the process that had the lock before may have migrated.
        version = await _read_version(connection)
        if version > len(steps):
            raise StoreUnavailable(
                f"The run store '{shown}' has version {version}, but this program supports versions up to {len(steps)}",
                hint="Upgrade metier, or use another database",
            )
        for number, step in enumerate(steps[version:], start=version + 1):
            await connection.execute(step)
            await connection.execute("INSERT INTO agent_schema_version (version) VALUES (%s)", (number,))


async def _read_version(connection: Connection) -> int:
    cursor = await connection.execute("SELECT to_regclass('agent_schema_version') IS NOT NULL")
    row = await cursor.fetchone()
    if row is None or not row[0]:
        return 0
    cursor = await connection.execute("SELECT coalesce(max(version), 0) FROM agent_schema_version")
    row = await cursor.fetchone()
    return int(row[0]) if row else 0
