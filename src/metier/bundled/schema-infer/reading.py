"""Records out of text: JSON, one JSON record a line, tables, `name: value` lines."""

import csv
import io
import json
import re

from .claims import Unreadable

MAX_BYTES = 8_000_000
MAX_DIGITS = 400
"""A longer row of digits is a code, not a number that anybody counts with."""
_PAIR = re.compile(r"^\s*[-*]?\s*([A-Za-z_][\w .-]{0,60}?)\s*[:=]\s*(.*?)\s*$")


def decode(data):
    """By its mark, else as UTF-8; spreadsheets like to write UTF-16."""
    if data.startswith((b"\xff\xfe", b"\xfe\xff")):
        return data.decode("utf-16")
    # The last character may have been cut in two where there is too much.
    return data[:MAX_BYTES].decode("utf-8-sig", "strict" if len(data) <= MAX_BYTES else "ignore") + "x" * (len(data) > MAX_BYTES)


def parse_json(text):
    try:
        value = json.loads(text, parse_constant=refuse_constant, parse_float=read_float)
    except RecursionError as error:
        raise Unreadable("it is nested too deeply") from error
    except ValueError as error:
        raise Unreadable(str(error)) from error
    return value


def refuse_constant(word):
    raise ValueError(f"{word} is no JSON")


def read_float(digits):
    value = float(digits)
    if value in (float("inf"), float("-inf")):
        raise ValueError(f"the number {digits[:40]} is too large")
    return value


def read_json(text):
    """An array of records, one record, or one record a line."""
    try:
        value = parse_json(text)
    except Unreadable:
        lines = [(number, line) for number, line in enumerate(text.split("\n"), 1) if line.strip()]
        if len(lines) < 2 or not is_json(lines[0][1]):
            raise
        return [read_line(line, number) for number, line in lines]
    if isinstance(value, list):
        return value
    inner = [item for item in value.values() if isinstance(item, list) and item] if isinstance(value, dict) else []
    is_envelope = len(inner) == 1 and all(isinstance(item, dict) for item in inner[0]) and len(value) <= 2
    return inner[0] if is_envelope else [value]


def is_json(line):
    try:
        parse_json(line)
    except Unreadable:
        return False
    return True


def read_line(line, number):
    try:
        return parse_json(line)
    except Unreadable as error:
        raise Unreadable(f"line {number}: {error}") from error


def read_table(text):
    """The names of the columns, and a record for each row: cells that are empty are left out."""
    lines = [line for line in text.splitlines() if line.strip()]
    if len(lines) < 2:
        raise Unreadable("a table needs a header and a row")
    delimiter = max(",;\t|", key=lines[0].count)
    try:
        csv.field_size_limit(MAX_BYTES)
        rows = [row for row in csv.reader(io.StringIO(text, newline=""), delimiter=delimiter, strict=True) if any(row)]
    except csv.Error as error:
        raise Unreadable(str(error)) from error
    header = [cell.strip() for cell in rows[0]]
    if len(set(header)) != len(header) or not all(header):
        raise Unreadable("the header has an empty or repeated name")
    odd = next((number for number, row in enumerate(rows[1:], 2) if len(row) != len(header)), None)
    if odd is not None:
        raise Unreadable(f"row {odd} has {len(rows[odd - 1])} cells, the header {len(header)}")
    typed = [type_column([row[at] for row in rows[1:]]) for at in range(len(header))]
    records = [
        {name: column[at] for name, column in zip(header, typed, strict=True) if column[at] is not None}
        for at in range(len(rows) - 1)
    ]
    return header, records


def type_column(cells):
    """Cells as numbers or truth values where every filled one is; a leading zero means that it is a code."""
    filled = [cell.strip() for cell in cells if cell.strip()]
    if filled and all(re.fullmatch(r"-?(0|[1-9][0-9]*)", cell) and len(cell) <= MAX_DIGITS for cell in filled):
        return [int(cell) if cell.strip() else None for cell in cells]
    if filled and all(is_fraction(cell) for cell in filled):
        return [float(cell) if cell.strip() else None for cell in cells]
    if filled and all(cell.lower() in ("true", "false") for cell in filled):
        return [cell.strip().lower() == "true" if cell.strip() else None for cell in cells]
    return [cell.strip() or None for cell in cells]


def is_fraction(cell):
    is_number = re.fullmatch(r"-?(0|[1-9][0-9]*)(\.[0-9]+)?([eE][+-]?[0-9]+)?", cell) and len(cell) <= MAX_DIGITS
    return bool(is_number) and abs(float(cell)) != float("inf")


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
