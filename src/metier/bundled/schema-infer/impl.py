"""Infer a JSON Schema from sample records or a description of them, with the evidence for every claim.

Needs nothing but Python. `execute` is called by Metier, one call a turn; the functions below it can be used alone.
"""

import json
import re
from collections import Counter

from .checking import FORMATS, find_faults, has_format, type_of
from .claims import DRAFT, Unreadable, claim, point
from .declared import describe, is_plain_description
from .reading import MAX_BYTES, decode, is_json, parse_json, read_json, read_table, read_text
from .typescript import TypeScript

SOURCE_TYPES = ("json", "csv", "text", "typescript", "description")
SUFFIXES = {
    ".json": "json", ".jsonl": "json", ".ndjson": "json", ".csv": "csv", ".tsv": "csv",
    ".txt": "text", ".log": "text", ".ts": "typescript", ".mts": "typescript",
}  # fmt: skip
MAX_ASSUMED = 0.3
MAX_RECORDS = 100_000
MAX_DISTINCT = 50
_FILE = re.compile(r"[\w./-]+\.(?:json|jsonl|ndjson|csv|tsv|txt|log|d\.ts|mts|ts)\b")


def execute(context):
    """One turn: ask for what is missing, else infer, check against the samples, and answer."""
    try:
        return take_turn(context)
    except RecursionError:
        return ask("The data is nested too deeply; give a part of it", data_field())


def take_turn(context):
    inputs = dict(context.inputs)
    sections = inputs.get("parsed_sections")
    if sections:
        return infer_from_sections(context, inputs, sections)
    text, origin = find_data(inputs, context.workspace)
    if text is None:
        fields = (data_field(required=False), path_field(), sections_field(required=False), type_field(required=False))
        return ask(origin or "Give the data, a path, or parsed sections with their source type", *fields)
    kind = inputs.get("source_type") or guess_source_type(text, origin)
    if kind not in SOURCE_TYPES:
        context.remember("read", origin)
        return ask(f"{kind!r} is no known source type" if kind else "The data could be several things", type_field())
    try:
        found = infer(text, kind, name=inputs.get("name") or "")
    except Unreadable as error:
        return ask(f"The data cannot be read as {kind}: {error}", type_field(), data_field(required=False))
    return conclude(context, inputs, found, kind=kind, origin=origin)


def conclude(context, inputs, found, *, kind, origin):
    """Check the schema against the samples, then answer."""
    try:
        samples = read_samples(inputs.get("samples"), found["records"])
    except Unreadable as error:
        return ask(f"The samples cannot be read as json: {error}", samples_field())
    failures = [f"record {number}: {why}" for number, record in enumerate(samples, 1) for why in find_faults(record, found["schema"])]
    if found["ratio"] > MAX_ASSUMED:
        return ask_for_more(context, found)
    if failures:
        return fail("validation_failed", f"The schema does not fit the samples: {failures[0]}")
    return finish(found, kind, origin, checked=len(samples))


def infer_from_sections(context, inputs, sections):
    """One record whose properties are the sections; `source_type` is the caller's word for where they come from."""
    kind = inputs.get("source_type")
    if not kind:
        return ask("Which source do the parsed sections come from?", own_type_field())
    text = json.dumps(sections if isinstance(sections, list) else [sections])
    if len(text) > MAX_BYTES:
        return ask(f"The parsed sections have more than {MAX_BYTES:,} bytes; give a part of them", sections_field())
    try:
        found = infer(text, "json", name=inputs.get("name") or "")
    except Unreadable as error:
        return ask(f"The parsed sections cannot be read: {error}", sections_field())
    return conclude(context, inputs, found, kind=kind, origin="the parsed sections")


def find_data(inputs, workspace):
    """The text, and where it came from; no text and why where there is none."""
    given = inputs.get("data")
    if isinstance(given, str) and given.strip():
        return check_text(given.removeprefix("\ufeff"), "the data that was given")
    if given not in (None, "", [], {}):
        return json.dumps(given), "the data that was given.json"
    named = inputs.get("path") or next(iter(_FILE.findall(inputs.get("task") or "")), "")
    if not named:
        return None, ""
    path = (workspace / named).resolve()
    if not path.is_relative_to(workspace.resolve()):
        return None, f"'{named}' is outside the workspace"
    try:
        with path.open("rb") as stream:
            data = stream.read(MAX_BYTES + 1)
    except OSError as error:
        return None, f"'{named}' cannot be read: {error.strerror}"
    try:
        return check_text(decode(data), named)
    except UnicodeDecodeError:
        return None, f"'{named}' is no text in UTF-8 or UTF-16"


def check_text(text, origin):
    if len(text) > MAX_BYTES:
        return None, f"In {origin!r} is more than {MAX_BYTES:,} bytes; give a part of it"
    return (text, origin) if text.strip() else (None, f"{origin!r} is empty")


def guess_source_type(text, origin):
    """The type where only one fits; None where a person must say."""
    suffix = "." + origin.rpartition(".")[2].lower() if "." in origin else ""
    if suffix in SUFFIXES and suffix != ".json":
        return SUFFIXES[suffix]
    if is_json(text):
        return "description" if is_plain_description(parse_json(text)) else "json"
    if suffix == ".json" or text.lstrip()[:1] in ("{", "[") or fits("json", text):
        return "json"
    if re.search(r"\b(?:(?:interface|enum)\s+\w+|type\s+\w+\s*=)", text):
        return "typescript"
    fitting = [kind for kind in ("csv", "text") if fits(kind, text)]
    return fitting[0] if len(fitting) == 1 else None


def fits(kind, text):
    """A table of one column could be anything."""
    try:
        if kind == "csv":
            return len(read_table(text)[0]) >= 2
        return len(read_json(text) if kind == "json" else read_text(text)) >= 1
    except Unreadable:
        return False


def infer(text, kind, *, name=""):
    """Schema, trace, records and the share of claims that are assumed."""
    if kind == "typescript":
        found = TypeScript(text).read(name)
        return {**found, "records": [], "ratio": assumed_share(found["trace"])}
    if kind == "description":
        schema, trace = describe(parse_json(text))
        return {"schema": head(name, schema), "trace": trace, "records": [], "ratio": assumed_share(trace)}
    names, records = [], []
    if kind == "csv":
        names, records = read_table(text)
    else:
        records = read_json(text) if kind == "json" else read_text(text)
    if not records:
        raise Unreadable("there is no record in it")
    shape = Shape()
    for record in records[:MAX_RECORDS]:
        shape.add(record)
    for name_of_column in names:
        # A column without a single value is a column all the same, in its place.
        shape.properties.setdefault(name_of_column, Shape())
    trace = {}
    schema = build(shape, "", trace)
    if assumed_share(trace) > MAX_ASSUMED:
        # What one record has need not be what every record has: a claim that nothing supports is not made.
        drop_assumed_required(schema, trace, "")
    return {"schema": head(name, schema), "trace": trace, "records": records, "ratio": assumed_share(trace)}


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


def build(shape, pointer, trace):
    """The schema of a shape. Every claim is written into the trace with what it rests on."""
    types = set(shape.types)
    if {"integer", "number"} <= types:
        types.discard("integer")
    claims = trace.setdefault(pointer or "/", {"seen": shape.seen, "claims": {}})["claims"]
    if types <= {"null"}:
        seen = "only null was seen" if types else "no value was seen"
        claims["type"] = claim("assumed", f"{seen}: any value is allowed")
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
        name: build(inner, f"{pointer}/properties/{point(name)}", trace) for name, inner in shape.properties.items()
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
        if len(texts) >= 2 and not shape.has_more and all(has_format(text, name, pattern) for text in texts):
            schema["format"] = name
            claims["format"] = claim("observed", f"all {len(texts)} distinct values have it")
            return
    if count >= 10 and len(texts) <= 5 and count >= 4 * len(texts) and not shape.has_more:
        schema["enum"] = sorted(texts) + ([None] if shape.types["null"] else [])
        claims["enum"] = claim("observed", f"{len(texts)} distinct values in {count}")


def assumed_share(trace):
    bases = [found["basis"] for place in trace.values() for found in place["claims"].values()]
    return round(bases.count("assumed") / len(bases), 3) if bases else 0.0


def drop_assumed_required(schema, trace, pointer):
    """Take back the claims that a single record makes about every record; what several show stays."""
    claims = trace[pointer or "/"]["claims"]
    for name in [key for key, found in claims.items() if key.startswith("required ") and found["basis"] == "assumed"]:
        claims[name.replace("required", "optional", 1)] = claim("observed", "present in the one record seen")
        del claims[name]
        schema.pop("required", None)
    for name, inner in schema.get("properties", {}).items():
        drop_assumed_required(inner, trace, f"{pointer}/properties/{point(name)}")
    if schema.get("items"):
        drop_assumed_required(schema["items"], trace, f"{pointer}/items")


def head(name, schema):
    return {"$schema": DRAFT, **({"title": name} if name else {}), **schema}


def read_samples(given, records):
    """What to check the result against: the records it was made from, or samples of their own."""
    if isinstance(given, str) and given.strip():
        return read_json(given)
    return given if isinstance(given, list) and given else records


def type_field(*, required=True):
    return {"name": "source_type", "description": "What the data is", "enum": list(SOURCE_TYPES), "required": required}


def own_type_field():
    return {"name": "source_type", "description": "Your word for the source", "required": True}


def sections_field(*, required=True):
    text = "Sections that were parsed already, by name, instead"
    return {"name": "parsed_sections", "type": "object", "description": text, "required": required}


def data_field(*, required=True):
    text = "Sample records (JSON, JSON lines, a table, or 'name: value' lines), or a TypeScript or JSON description"
    return {"name": "data", "description": text, "required": required}


def samples_field():
    return {"name": "samples", "description": "Records to check the result against, as JSON"}


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
    wanted = sections_field() if context.inputs.get("parsed_sections") else data_field()
    return ask(f"{share}: give more sample records", wanted)


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
