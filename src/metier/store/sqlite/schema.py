"""The tables of the SQLite store and their migrations: forward only, in one transaction."""

import sqlite3
from pathlib import Path

from metier.store.failures import StoreUnavailable

# STRICT, because SQLite otherwise stores text in a column of numbers. AUTOINCREMENT, because numbers are cursors: that
# of a deleted run must not be given again.
_FIRST = """
CREATE TABLE runs (
    number INTEGER PRIMARY KEY AUTOINCREMENT,  -- the order in which runs came; clocks may jump
    run_id TEXT NOT NULL UNIQUE,
    context_id TEXT NOT NULL,
    status TEXT NOT NULL,
    task TEXT NOT NULL,
    agent TEXT NOT NULL,
    model TEXT NOT NULL,
    parent_run_id TEXT NOT NULL,
    created_at TEXT NOT NULL,
    updated_at TEXT NOT NULL,
    turns INTEGER NOT NULL,
    cost_usd REAL NOT NULL,
    reason TEXT NOT NULL
) STRICT;
CREATE INDEX runs_by_context ON runs (context_id, number);
CREATE INDEX runs_by_status ON runs (status, number);

CREATE TABLE journal (
    run_id TEXT NOT NULL,
    seq INTEGER NOT NULL,
    kind TEXT NOT NULL,
    data BLOB NOT NULL,
    checksum INTEGER NOT NULL,
    PRIMARY KEY (run_id, seq)
) STRICT;

CREATE TABLE leases (
    run_id TEXT PRIMARY KEY,
    owner TEXT NOT NULL,      -- empty: no process drives
    token INTEGER NOT NULL,
    since TEXT NOT NULL,
    boot_id TEXT NOT NULL,
    until REAL NOT NULL,      -- uptime of that boot, in seconds
    process TEXT NOT NULL
) STRICT, WITHOUT ROWID;
CREATE TABLE fencing (last_token INTEGER NOT NULL) STRICT;
INSERT INTO fencing VALUES (0);

CREATE TABLE approvals (
    number INTEGER PRIMARY KEY AUTOINCREMENT,
    approval_id TEXT NOT NULL UNIQUE,
    run_id TEXT NOT NULL,
    step_id TEXT NOT NULL,
    payload BLOB NOT NULL,
    created_at TEXT NOT NULL,
    expires_at TEXT,
    status TEXT NOT NULL,
    decided_by TEXT NOT NULL,
    reason TEXT NOT NULL,
    edited_payload BLOB
) STRICT;
CREATE INDEX approvals_by_run ON approvals (run_id, number);
CREATE INDEX approvals_by_status ON approvals (status, number);

CREATE TABLE blobs (
    digest TEXT PRIMARY KEY,
    size INTEGER NOT NULL,
    put_at REAL NOT NULL,     -- the last time these bytes were put, in seconds since 1970
    is_whole INTEGER NOT NULL
) STRICT, WITHOUT ROWID;
CREATE TABLE blob_parts (
    digest TEXT NOT NULL,
    part INTEGER NOT NULL,
    data BLOB NOT NULL,
    PRIMARY KEY (digest, part)
) STRICT;
CREATE TABLE blob_names (
    run_id TEXT NOT NULL,     -- the run whose journal or approvals name the blob
    digest TEXT NOT NULL,
    PRIMARY KEY (run_id, digest)
) STRICT, WITHOUT ROWID;
CREATE INDEX blob_names_by_digest ON blob_names (digest);
"""

# Late decisions, which did not count, are kept for audits too.
_SECOND = """
CREATE TABLE approval_attempts (
    number INTEGER PRIMARY KEY AUTOINCREMENT,
    run_id TEXT NOT NULL,
    approval_id TEXT NOT NULL,
    status TEXT NOT NULL,
    decided_by TEXT NOT NULL,
    reason TEXT NOT NULL,
    at TEXT NOT NULL,
    counted INTEGER NOT NULL
) STRICT;
CREATE INDEX approval_attempts_by_approval ON approval_attempts (approval_id, number);
"""

# Queues and conversations. `runs_to_claim` has only the runs that a worker could claim, so a claim reads no ended ones.
_THIRD = """
ALTER TABLE runs ADD COLUMN queue TEXT NOT NULL DEFAULT '';  -- empty: the process that started it drives it
CREATE INDEX runs_to_claim ON runs (queue, number) WHERE queue != '' AND status IN ('pending', 'in_progress');

CREATE TABLE context_state (
    context_id TEXT PRIMARY KEY,
    current_turn INTEGER NOT NULL,
    task_state TEXT NOT NULL,
    summary TEXT NOT NULL,
    summarized_to INTEGER NOT NULL,
    last_event INTEGER NOT NULL,
    version INTEGER NOT NULL,
    resume_token TEXT NOT NULL,  -- digest of the token that led to this version; empty: none did
    agent_state_detail TEXT NOT NULL,
    input_request_payload TEXT NOT NULL,
    created_at TEXT NOT NULL,
    updated_at TEXT NOT NULL
) STRICT, WITHOUT ROWID;
CREATE INDEX contexts_by_change ON context_state (updated_at);

CREATE TABLE conversation_events (
    context_id TEXT NOT NULL,
    number INTEGER NOT NULL,
    event_type TEXT NOT NULL,
    payload TEXT NOT NULL,
    timestamp TEXT NOT NULL,
    turn_number INTEGER NOT NULL,
    agent_id TEXT NOT NULL,
    message_id TEXT,
    PRIMARY KEY (context_id, number),
    UNIQUE (context_id, message_id)
) STRICT;

CREATE TABLE pocket_facts (
    context_id TEXT NOT NULL,
    bucket TEXT NOT NULL,
    key TEXT NOT NULL,
    value TEXT NOT NULL,
    timestamp TEXT NOT NULL,
    ttl_seconds REAL,
    expires_at TEXT,
    PRIMARY KEY (context_id, bucket, key)
) STRICT;

CREATE TABLE messages (
    context_id TEXT NOT NULL,
    message_id TEXT NOT NULL,
    is_done INTEGER NOT NULL,
    result TEXT NOT NULL,
    owner TEXT NOT NULL,         -- empty: no worker has claimed it
    token INTEGER NOT NULL,
    boot_id TEXT NOT NULL,
    until REAL NOT NULL,
    process TEXT NOT NULL,
    PRIMARY KEY (context_id, message_id)
) STRICT, WITHOUT ROWID;
"""

# In the index and not in the journal: the process that asks does not hold the lease.
_FOURTH = """
ALTER TABLE runs ADD COLUMN ending TEXT NOT NULL DEFAULT '';  -- a pending request to end it
"""

# Without these, listing ended runs and deleting attempts would read whole tables.
_FIFTH = """
CREATE INDEX runs_by_end ON runs (updated_at, number)
    WHERE status IN ('completed', 'failed', 'timeout', 'escalated', 'canceled');
CREATE INDEX runs_by_queue ON runs (queue, status, number) WHERE queue != '';
CREATE INDEX approval_attempts_by_run ON approval_attempts (run_id);
"""

# The time is part of a firing's key, so that only one of several workers can decide about it.
_SCHEDULES = """
CREATE TABLE schedules (
    queue TEXT NOT NULL,
    name TEXT NOT NULL,
    definition TEXT NOT NULL,  -- empty: a file of the workspace defines it
    is_paused INTEGER NOT NULL,
    created_at TEXT NOT NULL,
    PRIMARY KEY (queue, name)
) STRICT, WITHOUT ROWID;
CREATE TABLE schedule_marks (
    queue TEXT NOT NULL,
    name TEXT NOT NULL,
    timing TEXT NOT NULL,
    since TEXT NOT NULL,
    decided_to TEXT NOT NULL,
    PRIMARY KEY (queue, name, timing)
) STRICT, WITHOUT ROWID;
CREATE TABLE schedule_firings (
    queue TEXT NOT NULL,
    name TEXT NOT NULL,
    due_at TEXT NOT NULL,
    outcome TEXT NOT NULL,
    run_id TEXT NOT NULL,
    reason TEXT NOT NULL,
    decided_at TEXT NOT NULL,
    is_open INTEGER NOT NULL,
    PRIMARY KEY (queue, name, due_at)
) STRICT, WITHOUT ROWID;
CREATE INDEX schedule_firings_open ON schedule_firings (queue, due_at) WHERE is_open = 1;
"""

# What a search filters by is in the index, so that it reads no journals.
_SEARCH = """
ALTER TABLE runs ADD COLUMN skill TEXT NOT NULL DEFAULT '';
ALTER TABLE runs ADD COLUMN task_id TEXT NOT NULL DEFAULT '';
CREATE INDEX runs_by_agent ON runs (agent, number);
CREATE INDEX runs_by_model ON runs (model, number);
CREATE INDEX runs_by_skill ON runs (skill, number);
CREATE INDEX runs_by_task ON runs (task_id, number);
"""

# The index has the open messages only: sent ones must not make the search for due ones slower.
_OUTBOX = """
CREATE TABLE outbox (
    key TEXT PRIMARY KEY,
    queue TEXT NOT NULL,
    channel TEXT NOT NULL,
    run_id TEXT NOT NULL,
    seq INTEGER NOT NULL,      -- the entry of the journal that it tells of; 0 for none
    payload TEXT NOT NULL,
    created_at TEXT NOT NULL,
    due_at TEXT NOT NULL,
    attempts INTEGER NOT NULL,
    state TEXT NOT NULL,
    reason TEXT NOT NULL
) STRICT, WITHOUT ROWID;
CREATE INDEX outbox_open ON outbox (queue, due_at) WHERE state = 'open';
"""

_RECEIVERS = """
CREATE TABLE receivers (
    run_id TEXT NOT NULL,
    name TEXT NOT NULL,
    data TEXT NOT NULL,
    PRIMARY KEY (run_id, name)
) STRICT, WITHOUT ROWID;
"""

# Zero for the runs of older versions, which did not count tokens.
_TOKENS = """
ALTER TABLE runs ADD COLUMN tokens INTEGER NOT NULL DEFAULT 0;
"""

# The rows of each run are kept as well as the totals: a run that is recorded again changes the totals by the
# difference.
_USAGE = """
CREATE TABLE run_usage (
    run_id TEXT NOT NULL,
    hour TEXT NOT NULL,
    model TEXT NOT NULL,
    skill TEXT NOT NULL,
    calls INTEGER NOT NULL,
    input_tokens INTEGER NOT NULL,
    cached_tokens INTEGER NOT NULL,
    output_tokens INTEGER NOT NULL,
    cost_usd REAL NOT NULL,
    unpriced_calls INTEGER NOT NULL,
    PRIMARY KEY (run_id, hour, model, skill)
) STRICT, WITHOUT ROWID;
CREATE TABLE usage_totals (
    dimension TEXT NOT NULL,   -- model, agent, skill or task
    grain TEXT NOT NULL,       -- day or hour
    period TEXT NOT NULL,
    name TEXT NOT NULL,
    calls INTEGER NOT NULL,
    input_tokens INTEGER NOT NULL,
    cached_tokens INTEGER NOT NULL,
    output_tokens INTEGER NOT NULL,
    cost_usd REAL NOT NULL,
    unpriced_calls INTEGER NOT NULL,
    PRIMARY KEY (dimension, grain, period, name)
) STRICT, WITHOUT ROWID;
ALTER TABLE runs ADD COLUMN has_usage INTEGER NOT NULL DEFAULT 0;  -- 1: its usage is in the totals
CREATE INDEX runs_without_usage ON runs (number) WHERE has_usage = 0;
CREATE INDEX runs_by_creation ON runs (created_at, status, run_id);
"""

# Every run has a lease since its creation. In older versions, runs that had never been driven had none.
_LEASES = """
INSERT INTO leases (run_id, owner, token, since, boot_id, until, process)
    SELECT run_id, '', 0, '', '', 0.0, '' FROM runs WHERE run_id NOT IN (SELECT run_id FROM leases);
"""

MIGRATIONS: tuple[str, ...] = (
    _FIRST, _SECOND, _THIRD, _FOURTH, _FIFTH, _SCHEDULES, _SEARCH, _OUTBOX, _RECEIVERS, _TOKENS, _USAGE, _LEASES
)  # fmt: skip
"""Step N migrates version N to N + 1. A released step is never changed."""


def migrate(connection: sqlite3.Connection, database: Path, *, steps: tuple[str, ...] = MIGRATIONS) -> None:
    """Migrate the tables in the caller's transaction. Raises `StoreUnavailable` for another program's file."""
    version = _read_version(connection, database)
    # A newer version may have given the columns another meaning.
    if version > len(steps):
        raise StoreUnavailable(
            f"The run store '{database}' has version {version}, but this program supports versions up to {len(steps)}",
            hint="Upgrade metier, or use another folder",
        )
    for number, step in enumerate(steps[version:], start=version + 1):
        for statement in _split(step):
            connection.execute(statement)
        # In the transaction of the step: after a crash, both are there or neither.
        connection.execute("INSERT INTO schema_version (version) VALUES (?)", (number,))


def _read_version(connection: sqlite3.Connection, database: Path) -> int:
    tables = {str(name) for (name,) in connection.execute("SELECT name FROM sqlite_schema WHERE type = 'table'")}
    if not tables:
        connection.execute("CREATE TABLE schema_version (version INTEGER PRIMARY KEY) STRICT")
        return 0
    if "schema_version" not in tables:
        raise StoreUnavailable(
            f"The file '{database}' is a database of another program",
            hint="Move it away, or use another folder",
        )
    return int(connection.execute("SELECT coalesce(max(version), 0) FROM schema_version").fetchone()[0])


def _split(script: str) -> list[str]:
    """Split a script into statements: `executescript` would commit the transaction of the migration."""
    statements: list[str] = []
    part = ""
    for piece in script.split(";"):
        part += piece + ";"
        if sqlite3.complete_statement(part):
            statements.append(part)
            part = ""
    return [statement for statement in statements if statement.strip(" \n;")]
