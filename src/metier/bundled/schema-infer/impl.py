"""Infer a JSON Schema from sample records or a description of them, with the evidence for every claim.

Needs nothing but Python. `execute` is called by Metier, one call a turn; the functions below it can be used alone.
"""

import csv
import io
import json
import re
from collections import Counter

from .declared import DRAFT, TypeScript, Unreadable, claim, describe, is_description

SOURCE_TYPES = ("json", "csv", "text", "typescript", "description")
SUFFIXES = {
    ".json": "json", ".jsonl": "json", ".ndjson": "json", ".csv": "csv", ".tsv": "csv",
    ".txt": "text", ".log": "text", ".ts": "typescript",
}  # fmt: skip
MAX_ASSUMED = 0.3
MAX_BYTES = 8_000_000
MAX_RECORDS = 100_000
MAX_DISTINCT = 50
FORMATS = {
    "date-time": r"\d{4}-\d\d-\d\d[T ]\d\d:\d\d(:\d\d(\.\d+)?)?(Z|[+-]\d\d:?\d\d)?",
    "date": r"\d{4}-\d\d-\d\d",
    "time": r"\d\d:\d\d:\d\d(\.\d+)?",
    "uuid": r"[0-9a-fA-F]{8}(-[0-9a-fA-F]{4}){3}-[0-9a-fA-F]{12}",
    "email": r"[^@\s]+@[^@\s]+\.[^@\s.]+",
    "ipv4": r"(\d{1,3}\.){3}\d{1,3}",
    "uri": r"[a-zA-Z][a-zA-Z0-9+.-]*://\S+",
}
_FILE = re.compile(r"[\w./-]+\.(?:json|jsonl|ndjson|csv|tsv|txt|log|d\.ts|ts)\b")
_PAIR = re.compile(r"^\s*[-*]?\s*([A-Za-z_][\w .-]{0,60}?)\s*[:=]\s*(.*?)\s*$")


def execute(context):
    """One turn: ask for what is missing, else infer, check against the samples, and answer."""
    inputs = dict(context.inputs)
    text, origin = find_data(inputs, context.workspace)
    if text is None:
        return ask(origin or "What shall the schema describe?", data_field(), path_field())
    kind = inputs.get("source_type") or guess_source_type(text, origin)
    if kind is None:
        context.remember("read", origin)
        return ask("The data could be several things", type_field())
    try:
        found = infer(text, kind, name=inputs.get("name") or "")
    except Unreadable as error:
        return ask(f"The data cannot be read as {kind}: {error}", type_field(), data_field(required=False))
    samples = read_samples(inputs.get("samples"), found["records"])
    failures = [f"record {number}: {why}" for number, record in enumerate(samples, 1) for why in find_faults(record, found["schema"])]
    if found["ratio"] > MAX_ASSUMED:
        return ask_for_more(context, found)
    if failures:
        return fail("validation_failed", f"The schema does not fit the samples: {failures[0]}")
    return finish(found, kind, origin, checked=len(samples))


def find_data(inputs, workspace):
    """The text, and where it came from; no text and why where there is none."""
    given = inputs.get("data")
    if isinstance(given, str) and given.strip():
        return given[:MAX_BYTES], "the data that was given"
    if given not in (None, "", [], {}):
        return json.dumps(given), "the data that was given.json"
    named = inputs.get("path") or next(iter(_FILE.findall(inputs.get("task") or "")), "")
    if not named:
        return None, ""
    path = (workspace / named).resolve()
    if not path.is_relative_to(workspace.resolve()):
        return None, f"'{named}' is outside the workspace"
    try:
        with path.open(encoding="utf-8-sig", errors="replace") as stream:
            return stream.read(MAX_BYTES), named
    except OSError as error:
        return None, f"'{named}' cannot be read: {error.strerror}"


def guess_source_type(text, origin):
    """The type where only one fits; None where a person must say."""
    suffix = "." + origin.rpartition(".")[2].lower() if "." in origin else ""
    if suffix in SUFFIXES and suffix != ".json":
        return SUFFIXES[suffix]
    if re.search(r"\b(?:interface\s+\w+|type\s+\w+\s*=)", text):
        return "typescript"
    try:
        records = read_json(text)
    except Unreadable:
        fitting = [kind for kind in ("csv", "text") if fits(kind, text)]
        return fitting[0] if len(fitting) == 1 else None
    return "description" if len(records) == 1 and is_description(records[0]) else "json"


def fits(kind, text):
    try:
        records = read_csv(text) if kind == "csv" else read_text(text)
    except Unreadable:
        return False
    return len(records) >= 1 and len(records[0]) >= (2 if kind == "csv" else 1)


def infer(text, kind, *, name=""):
    """Schema, trace, records and the share of claims that are assumed."""
    if kind == "typescript":
        found = TypeScript(text).read(name)
        return {**found, "records": [], "ratio": 0.0}
    if kind == "description":
        schema, trace = describe(parse_json(text))
        return {"schema": head(name, schema), "trace": trace, "records": [], "ratio": 0.0}
    records = {"json": read_json, "csv": read_csv, "text": read_text}[kind](text)
    if not records:
        raise Unreadable("there is no record in it")
    shape = Shape()
    for record in records[:MAX_RECORDS]:
        shape.add(record)
    trace = {}
    schema = build(shape, "", trace)
    if assumed_share(trace) > MAX_ASSUMED:
        # What one record has need not be what every record has: a claim that nothing supports is not made.
        drop_assumed_required(schema, trace)
    return {"schema": head(name, schema), "trace": trace, "records": records, "ratio": assumed_share(trace)}


def parse_json(text):
    try:
        return json.loads(text)
    except (ValueError, RecursionError) as error:
        raise Unreadable(str(error)) from error


def read_json(text):
    """An array of records, one record, or one record a line."""
    try:
        value = parse_json(text)
    except Unreadable:
        lines = [line for line in text.splitlines() if line.strip()]
        if len(lines) < 2:
            raise
        return [parse_json(line) for line in lines]
    if isinstance(value, list):
        return value
    inner = [item for item in value.values() if isinstance(item, list) and item] if isinstance(value, dict) else []
    is_envelope = len(inner) == 1 and all(isinstance(item, dict) for item in inner[0]) and len(value) <= 2
    return inner[0] if is_envelope else [value]


def read_csv(text):
    lines = [line for line in text.splitlines() if line.strip()]
    if len(lines) < 2:
        raise Unreadable("a table needs a header and a row")
    delimiter = max(",;\t|", key=lines[0].count)
    if not lines[0].count(delimiter):
        raise Unreadable("the first line has no delimiter")
    rows = list(csv.reader(io.StringIO(text.strip()), delimiter=delimiter))
    header = [cell.strip() for cell in rows[0]]
    if len(set(header)) != len(header) or not all(header):
        raise Unreadable("the header has an empty or repeated name")
    odd = next((number for number, row in enumerate(rows[1:], 2) if row and len(row) != len(header)), None)
    if odd is not None:
        raise Unreadable(f"row {odd} has {len(rows[odd - 1])} cells, the header {len(header)}")
    columns = {name: [row[at] for row in rows[1:] if row] for at, name in enumerate(header)}
    typed = {name: type_column(cells) for name, cells in columns.items()}
    count = len(next(iter(typed.values())))
    return [{name: typed[name][at] for name in header if typed[name][at] is not None} for at in range(count)]


def type_column(cells):
    """Cells as numbers or truth values where every filled one is; a leading zero means that it is a code."""
    filled = [cell.strip() for cell in cells if cell.strip()]
    if filled and all(re.fullmatch(r"-?(0|[1-9]\d*)", cell) for cell in filled):
        return [int(cell) if cell.strip() else None for cell in cells]
    if filled and all(re.fullmatch(r"-?(0|[1-9]\d*)(\.\d+)?([eE][+-]?\d+)?", cell) for cell in filled):
        return [float(cell) if cell.strip() else None for cell in cells]
    if filled and all(cell.lower() in ("true", "false") for cell in filled):
        return [cell.strip().lower() == "true" if cell.strip() else None for cell in cells]
    return [cell.strip() or None for cell in cells]


def read_text(text):
    """Records of `name: value` lines, with blank lines between them."""
    records = []
    for block in re.split(r"\n\s*\n", text.strip()):
        pairs = [match.groups() for line in block.splitlines() if (match := _PAIR.match(line))]
        if pairs and len(pairs) >= len(block.splitlines()) / 2:
            records.append(dict(pairs))
    if not records:
        raise Unreadable("no lines of the form 'name: value'")
    names = dict.fromkeys(name for record in records for name in record)
    typed = {name: iter(type_column([record.get(name, "") for record in records])) for name in names}
    rows = [{name: next(typed[name]) for name in names} for _ in records]
    return [{name: value for name, value in row.items() if value is not None} for row in rows]


class Shape:
    """What was seen in one place of the records."""

    def __init__(self):
        self.types, self.values, self.properties, self.items, self.has_more = Counter(), Counter(), {}, None, False

    def add(self, value):
        kind = type_of(value)
        self.types[kind] += 1
        if kind == "object":
            for name, inner in value.items():
                self.properties.setdefault(str(name), Shape()).add(inner)
        elif kind == "array":
            self.items = self.items or Shape()
            for inner in value[:MAX_RECORDS]:
                self.items.add(inner)
        elif kind != "null" and (len(self.values) < MAX_DISTINCT or value in self.values):
            self.values[value] += 1
        elif kind != "null":
            self.has_more = True

    @property
    def seen(self):
        return sum(self.types.values())


def type_of(value):
    for kind, python in (("boolean", bool), ("integer", int), ("number", float), ("string", str), ("object", dict)):
        if isinstance(value, python):
            return kind
    return "null" if value is None else "array"


def build(shape, pointer, trace):
    """The schema of a shape. Every claim is written into the trace with what it rests on."""
    types = set(shape.types)
    if {"integer", "number"} <= types:
        types.discard("integer")
    claims = trace.setdefault(pointer or "/", {"seen": shape.seen, "claims": {}})["claims"]
    if types == {"null"}:
        claims["type"] = claim("assumed", "only null was seen: any value is allowed")
        return {}
    schema = {"type": sorted(types)[0] if len(types) == 1 else sorted(types)}
    counts = ", ".join(f"{count} {kind}" for kind, count in sorted(shape.types.items()))
    claims["type"] = claim("observed", f"{counts} in {shape.seen} values", examples=list(shape.values)[:3])
    if "object" in types:
        add_properties(schema, shape, pointer, trace, claims)
    if "array" in types:
        schema["items"] = build(shape.items, f"{pointer}/items", trace) if shape.items and shape.items.seen else {}
        if not schema["items"]:
            claims["items"] = claim("assumed", "only empty arrays were seen: any item is allowed")
    if types <= {"string", "null"}:
        add_text_claims(schema, shape, claims)
    return schema


def add_properties(schema, shape, pointer, trace, claims):
    objects = shape.types["object"]
    schema["properties"] = {
        name: build(inner, f"{pointer}/properties/{name}", trace) for name, inner in shape.properties.items()
    }
    required = [name for name, inner in shape.properties.items() if inner.seen == objects]
    if required:
        schema["required"] = required
        for name in required:
            basis = "observed" if objects > 1 else "assumed"
            claims[f"required {name}"] = claim(basis, f"present in {objects} of {objects} records")
    for name, inner in shape.properties.items():
        if name not in required:
            claims[f"optional {name}"] = claim("observed", f"present in {inner.seen} of {objects} records")


def add_text_claims(schema, shape, claims):
    texts, count = list(shape.values), shape.types["string"]
    for name, pattern in FORMATS.items():
        if len(texts) >= 2 and not shape.has_more and all(re.fullmatch(pattern, text) for text in texts):
            schema["format"] = name
            claims["format"] = claim("observed", f"all {len(texts)} distinct values have it")
            return
    if count >= 10 and len(texts) <= 5 and count >= 4 * len(texts) and not shape.has_more:
        schema["enum"] = sorted(texts) + ([None] if shape.types["null"] else [])
        claims["enum"] = claim("observed", f"{len(texts)} distinct values in {count}")


def assumed_share(trace):
    bases = [found["basis"] for place in trace.values() for found in place["claims"].values()]
    return round(bases.count("assumed") / len(bases), 3) if bases else 0.0


def drop_assumed_required(schema, trace):
    """Take back the claims that a single record makes about every record."""
    for place in trace.values():
        for name in [key for key, found in place["claims"].items() if key.startswith("required ") and found["basis"] == "assumed"]:
            place["claims"][name.replace("required", "optional", 1)] = claim("observed", "present in the one record seen")
            del place["claims"][name]
    for node in walk(schema):
        node.pop("required", None)


def walk(schema):
    yield schema
    children = [*schema.get("properties", {}).values(), *([schema["items"]] if "items" in schema else [])]
    for child in children:
        yield from walk(child)


def head(name, schema):
    return {"$schema": DRAFT, **({"title": name} if name else {}), **schema}


def read_samples(given, records):
    """What to check the result against: the records it was made from, or samples of their own."""
    if isinstance(given, str) and given.strip():
        return read_json(given)
    return given if isinstance(given, list) and given else records


def find_faults(value, schema, root=None, place="$"):
    """Where a value does not fit, in the keywords that are used here."""
    root = root or schema
    if "$ref" in schema:
        return find_faults(value, root.get("$defs", {}).get(schema["$ref"].rpartition("/")[2], {}), root, place)
    if "anyOf" in schema:
        fits = any(not find_faults(value, part, root, place) for part in schema["anyOf"])
        return [] if fits else [f"{place} fits none of the alternatives"]
    wanted = schema.get("type", [])
    wanted = [wanted] if isinstance(wanted, str) else wanted
    kind = type_of(value)
    if wanted and kind not in wanted and not (kind == "integer" and "number" in wanted):
        return [f"{place} is {kind}, not {' or '.join(wanted)}"]
    if "enum" in schema and value not in schema["enum"] or "const" in schema and value != schema["const"]:
        return [f"{place} is none of the listed values"]
    faults = []
    if kind == "object":
        faults += [f"{place} has no {name!r}" for name in schema.get("required", []) if name not in value]
        for name, inner in schema.get("properties", {}).items():
            faults += find_faults(value[name], inner, root, f"{place}.{name}") if name in value else []
    if kind == "array":
        for at, item in enumerate(value):
            faults += find_faults(item, schema.get("items", {}), root, f"{place}[{at}]")
    return faults[:10]


def type_field():
    return {"name": "source_type", "description": "What the data is", "enum": list(SOURCE_TYPES)}


def data_field(*, required=True):
    text = "Sample records (JSON, JSON lines, a table, or 'name: value' lines), or a TypeScript or JSON description"
    return {"name": "data", "description": text, "required": required}


def path_field():
    return {"name": "path", "description": "A file in the workspace that holds them, instead", "required": False}


def ask(message, *fields):
    return {"state": "input_required", "input_request": {"message": message, "missing_fields": list(fields)}}


def fail(code, message):
    return {"state": "failed", "errors": [{"code": code, "message": message}]}


def ask_for_more(context, found):
    """Once: too much of the schema would be guesswork."""
    share = f"{found['ratio']:.0%} of the claims would be assumptions (at most {MAX_ASSUMED:.0%} may be)"
    if context.recall("asked_for_more"):
        return fail("too_many_assumptions", f"{share}, also with what was given since")
    context.remember("asked_for_more", True)
    return ask(f"{share}: give more sample records", data_field())


def finish(found, kind, origin, *, checked):
    schema, trace = found["schema"], found["trace"]
    assumptions = [
        f"{place} {name}: {why['evidence']}"
        for place, entry in trace.items() for name, why in entry["claims"].items() if why["basis"] == "assumed"
    ]  # fmt: skip
    fields = len(schema.get("properties", {}))
    against = f"checked against {checked} records" if checked else "declared, so there was nothing to check it against"
    summary = f"Inferred a schema of {fields} fields from {origin.removesuffix('.json')} ({kind}), {against}, {found['ratio']:.0%} assumed"
    outputs = {
        "summary": summary, "schema": schema, "trace": trace, "assumptions": assumptions,
        "assumption_ratio": found["ratio"], "source_type": kind, "records_checked": checked,
    }  # fmt: skip
    artifacts = {"schema.json": json.dumps(schema, indent=2, ensure_ascii=False) + "\n"}
    return {"state": "completed", "outputs": outputs, "artifacts": artifacts}
