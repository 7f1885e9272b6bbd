"""Schemas that somebody wrote down in other words: TypeScript types, or JSON with the names of types."""

import json
import re

DRAFT = "https://json-schema.org/draft/2020-12/schema"
TYPE_WORDS = {
    "string": "string", "str": "string", "text": "string", "integer": "integer", "int": "integer",
    "number": "number", "float": "number", "decimal": "number", "boolean": "boolean", "bool": "boolean",
    "object": "object", "array": "array", "list": "array", "null": "null",
}  # fmt: skip


class Unreadable(Exception):
    """The data is not what the source type says."""


def claim(basis, evidence, *, examples=()):
    return {"basis": basis, "evidence": evidence, **({"examples": list(examples)} if examples else {})}


def is_description(value):
    """`{"age?": "integer"}` or `{"fields": [{"name": …, "type": …}]}`: words of types instead of values."""
    if not isinstance(value, dict) or not value:
        return False
    if isinstance(value.get("fields"), list):
        return all(isinstance(item, dict) and "name" in item for item in value["fields"])
    return all(isinstance(item, str) and item.lower().rstrip("[]?") in TYPE_WORDS for item in value.values())


def describe(value):
    if not is_description(value):
        raise Unreadable("write {\"name\": \"type\"}, or {\"fields\": [{\"name\": …, \"type\": …}]}")
    trace, properties, required = {}, {}, []
    fields = value.get("fields") if isinstance(value.get("fields"), list) else None
    if fields is None:
        fields = [{"name": key.rstrip("?"), "type": kind, "required": not key.endswith("?")} for key, kind in value.items()]
    for field in fields:
        word = str(field.get("type", "string")).lower()
        kind = TYPE_WORDS.get(word.rstrip("[]?"), "string")
        schema = {"type": "array", "items": {"type": kind}} if word.endswith("[]") else {"type": kind}
        for key in ("description", "enum", "format", "minimum", "maximum"):
            if key in field:
                schema[key] = field[key]
        properties[field["name"]] = schema
        if field.get("required", True) and not word.endswith("?"):
            required.append(field["name"])
        evidence = claim("declared", f"the description says {json.dumps(field, ensure_ascii=False)[:120]}")
        trace[f"/properties/{field['name']}"] = {"claims": {"type": evidence}}
    return {"type": "object", "properties": properties, **({"required": required} if required else {})}, trace


class TypeScript:
    """Interfaces and type aliases: the part of the language that describes data."""

    WORDS = {"string": "string", "number": "number", "boolean": "boolean", "null": "null", "bigint": "integer"}
    TOKEN = re.compile(r"/\*.*?\*/|//[^\n]*|\"(?:[^\"\\]|\\.)*\"|'(?:[^'\\]|\\.)*'|-?\d+(?:\.\d+)?|[A-Za-z_$][\w$.]*|\S", re.DOTALL)

    def __init__(self, text):
        self.tokens = [(match.group(), text.count("\n", 0, match.start()) + 1) for match in self.TOKEN.finditer(text)]
        self.at, self.trace, self.note = 0, {}, ""

    def read(self, name):
        types = {}
        while self.at < len(self.tokens):
            word = self.take()
            if word in ("interface", "type"):
                title = self.take()
                self.skip_until("{" if word == "interface" else "=", keep=word == "interface")
                types[title] = self.read_type(f"/$defs/{title}")
        if not types:
            raise Unreadable("there is no interface and no type in it")
        main = name if name in types else next(iter(types))
        rest = {title: schema for title, schema in types.items() if title != main}
        text = json.dumps(rest)
        used = {title: schema for title, schema in rest.items() if f"#/$defs/{title}\"" in text + json.dumps(types[main])}
        trace = {key.removeprefix(f"/$defs/{main}") or "/": value for key, value in self.trace.items()}
        return {"schema": {"$schema": DRAFT, "title": main, **types[main], **({"$defs": used} if used else {})}, "trace": trace}

    def peek(self):
        while self.at < len(self.tokens) and self.tokens[self.at][0].startswith(("/*", "//")):
            self.note = " ".join(re.sub(r"[/*]+", " ", self.tokens[self.at][0]).split())
            self.at += 1
        return self.tokens[self.at][0] if self.at < len(self.tokens) else ""

    def take(self):
        token = self.peek()
        self.at += 1
        return token

    def skip_until(self, wanted, *, keep):
        while self.peek() not in (wanted, ""):
            self.at += 1
        self.at += 0 if keep else 1

    def read_type(self, pointer):
        """A union of parts."""
        if self.peek() == "|":
            self.take()
        parts = [self.read_part(pointer)]
        while self.peek() == "|":
            self.take()
            parts.append(self.read_part(pointer))
        parts = [part for part in parts if part != {"not": {}}]
        if all("const" in part for part in parts) and parts:
            return {"enum": [part["const"] for part in parts]}
        return parts[0] if len(parts) == 1 else {"anyOf": parts}

    def read_part(self, pointer):
        token = self.take()
        if token == "{":
            schema = self.read_object(pointer)
        elif token == "(":
            schema = self.read_type(pointer)
            self.skip_until(")", keep=False)
        elif token in ("Array", "ReadonlyArray") and self.peek() == "<":
            self.take()
            schema = {"type": "array", "items": self.read_type(pointer)}
            self.skip_until(">", keep=False)
        elif token == "Record" and self.peek() == "<":
            self.skip_until(",", keep=False)
            schema = {"type": "object", "additionalProperties": self.read_type(pointer)}
            self.skip_until(">", keep=False)
        else:
            schema = self.read_word(token)
        while self.peek() == "[":
            self.skip_until("]", keep=False)
            schema = {"type": "array", "items": schema}
        return schema

    def read_word(self, token):
        if token[:1] in "\"'":
            return {"const": token[1:-1]}
        if re.fullmatch(r"-?\d+(\.\d+)?", token):
            return {"const": json.loads(token)}
        if token in ("true", "false"):
            return {"const": token == "true"}
        if token == "undefined":
            return {"not": {}}
        if token in ("any", "unknown"):
            return {}
        if token == "Date":
            return {"type": "string", "format": "date-time"}
        return {"type": self.WORDS[token]} if token in self.WORDS else {"$ref": f"#/$defs/{token}"}

    def read_object(self, pointer):
        properties, required = {}, []
        while self.peek() not in ("}", ""):
            self.note = ""
            self.peek()
            note, line = self.note, self.tokens[self.at][1]
            name = self.take().strip("\"'")
            if name in (";", ",", "readonly"):
                continue
            optional = self.peek() == "?"
            self.skip_until(":", keep=False)
            place = f"{pointer}/properties/{name}"
            properties[name] = {**({"description": note} if note else {}), **self.read_type(place)}
            self.trace[place] = {"claims": {"type": claim("declared", f"line {line} of the source")}}
            required += [] if optional else [name]
        self.take()
        return {"type": "object", "properties": properties, **({"required": required} if required else {})}
