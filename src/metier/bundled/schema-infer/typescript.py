"""The part of TypeScript that describes data: interfaces, type aliases, enums. What is no data (methods) is left out."""

import json
import re

from .claims import DRAFT, Unreadable, claim, point

WORDS = {
    "string": {"type": "string"}, "number": {"type": "number"}, "boolean": {"type": "boolean"}, "null": {"type": "null"},
    "bigint": {"type": "integer"}, "object": {"type": "object"}, "Date": {"type": "string", "format": "date-time"},
    "any": {}, "unknown": {},
}  # fmt: skip
NOTHING = {"not": {}}
"""`undefined`: JSON has no word for it, the key is not there."""
SAME = ("Readonly", "Required", "NonNullable", "Awaited")
LISTS = ("Array", "ReadonlyArray", "Set", "ReadonlySet")
MAPS = ("Record", "Map", "ReadonlyMap")
MODIFIERS = ("readonly", "public", "declare", "static")
_TOKEN = re.compile(
    r"/\*.*?\*/|//[^\n]*|\"(?:[^\"\\\n]|\\.)*\"|'(?:[^'\\\n]|\\.)*'|=>|\.\.\.|-?\d+(?:\.\d+)?|[^\W\d][\w$.]*|\$[\w$.]*|\S", re.DOTALL
)
_NAME = re.compile(r"[^\W\d][\w$.]*|\$[\w$.]*")


class TypeScript:
    """Reads one source. Raises `Unreadable` with the line of what it does not know."""

    def __init__(self, text):
        self.tokens = [(match.group(), text.count("\n", 0, match.start()) + 1) for match in _TOKEN.finditer(text)]
        self.at, self.trace, self.types, self.note = 0, {}, {}, ""

    def read(self, name):
        while self.peek():
            word = self.take()
            if word in ("interface", "type", "enum") and _NAME.fullmatch(self.peek()):
                self.read_declaration(word)
        if not self.types:
            raise Unreadable("there is no interface, no type and no enum in it")
        if name and name not in self.types:
            raise Unreadable(f"it declares no {name!r}; there are: {', '.join(self.types)}")
        main = name or next(iter(self.types))
        types = {title: self.resolve(schema, main, title) for title, schema in self.types.items()}
        used = self.find_used(types, main)
        trace = {key.removeprefix(f"/$defs/{main}") or "/": value for key, value in self.trace.items()}
        return {"schema": {"$schema": DRAFT, "title": main, **types[main], **({"$defs": used} if used else {})}, "trace": trace}

    def read_declaration(self, word):
        title = self.take()
        place = f"/$defs/{point(title)}"
        if word == "enum":
            self.types[title] = self.read_enum(place)
            return
        if self.peek() == "<":
            raise self.refuse(f"type {title!r} has parameters; give the type without them")
        if word == "type":
            if self.take() == "=":
                self.types[title] = self.read_type(place)
            return
        above = []
        if self.peek() == "extends":
            self.take()
            above = [self.read_part(place)]
            while self.peek() == ",":
                self.take()
                above.append(self.read_part(place))
        self.expect("{")
        own = self.read_object(place)
        self.types[title] = {"allOf": [*above, own]} if above else own

    def read_enum(self, place):
        self.expect("{")
        values, following = [], 0
        while self.peek() not in ("}", ""):
            self.take()
            value = following
            if self.peek() == "=":
                self.take()
                value = self.read_word(self.take()).get("const")
                if value is None:
                    raise self.refuse("a value of the enum is computed")
            values.append(value)
            following = value + 1 if isinstance(value, int) else following
            if self.peek() == ",":
                self.take()
        self.expect("}")
        self.trace[place] = {"claims": {"enum": claim("declared", f"{len(values)} values of the enum")}}
        return {"enum": values}

    def read_type(self, place):
        """A union of intersections."""
        if self.peek() == "|":
            self.take()
        parts = [self.read_intersection(place)]
        while self.peek() == "|":
            self.take()
            parts.append(self.read_intersection(place))
        there = [part for part in parts if part != NOTHING]
        if there and all("const" in part for part in there):
            schema = {"enum": [part["const"] for part in there]}
        else:
            schema = there[0] if len(there) == 1 else {"anyOf": there} if there else NOTHING
        # Remembered for the field that has this type: JSON leaves out what is undefined.
        self.may_be_absent = len(there) < len(parts)
        return schema

    def read_intersection(self, place):
        parts = [self.read_part(place)]
        while self.peek() == "&":
            self.take()
            parts.append(self.read_part(place))
        return parts[0] if len(parts) == 1 else {"allOf": parts}

    def read_part(self, place):
        token = self.take()
        if token == "{":
            schema = self.read_object(place)
        elif token == "(":
            schema = self.read_group(place)
        elif token == "[":
            schema = self.read_tuple(place)
        elif token in ("readonly", "keyof", "typeof", "infer"):
            if token != "readonly":
                raise self.refuse(f"{token!r} is computed from other code")
            return self.read_part(place)
        else:
            schema = self.read_generic(token, place) if self.peek() == "<" else self.read_word(token)
        while self.peek() == "[":
            self.take()
            self.expect("]")
            schema = {"type": "array", "items": schema}
        return schema

    def read_group(self, place):
        """A type in parentheses; a function, which is no data, where an arrow follows."""
        start, depth = self.at, 1
        while depth and self.peek():
            depth += {"(": 1, ")": -1}.get(self.take(), 0)
        if self.peek() == "=>":
            self.take()
            self.read_type(place)
            return NOTHING
        self.at = start
        schema = self.read_type(place)
        self.expect(")")
        return schema

    def read_tuple(self, place):
        items, least, rest = [], 0, None
        while self.peek() not in ("]", ""):
            if self.peek() == "...":
                self.take()
                rest = self.read_type(place).get("items", {})
            else:
                if _NAME.fullmatch(self.peek()) and self.look(1) in (":", "?") and self.look(1 + (self.look(1) == "?")) == ":":
                    self.take()  # a label
                    least -= self.peek() == "?"
                    self.at += 2 if self.peek() == "?" else 1
                items.append(self.read_type(place))
                least += 1
            if self.peek() == "?":
                self.take()
                least -= 1
            if self.peek() == ",":
                self.take()
        self.expect("]")
        return {"type": "array", "prefixItems": items, "items": rest if rest is not None else False, "minItems": least}

    def read_generic(self, token, place):
        self.expect("<")
        inner = [self.read_type(place)]
        while self.peek() == ",":
            self.take()
            inner.append(self.read_type(place))
        self.expect(">")
        if token in LISTS:
            return {"type": "array", "items": inner[0]}
        if token in MAPS and len(inner) == 2:
            return {"type": "object", "additionalProperties": inner[1]}
        if token in SAME:
            return inner[0]
        if token == "Partial":
            return {"partial of": inner[0]}
        raise self.refuse(f"{token}<…> is not known here")

    def read_word(self, token):
        if token[:1] in "\"'" and token:
            return {"const": _unquote(token)}
        if re.fullmatch(r"-?\d+(\.\d+)?", token):
            return {"const": json.loads(token)}
        if token in ("true", "false"):
            return {"const": token == "true"}
        if token in ("undefined", "void", "never"):
            return NOTHING
        if not _NAME.fullmatch(token):
            raise self.refuse(f"{token or 'the end'!r} is no type")
        return dict(WORDS[token]) if token in WORDS else {"$ref": f"#/$defs/{point(token)}"}

    def read_object(self, place):
        properties, required, more = {}, [], None
        while self.peek() not in ("}", ""):
            self.note = ""
            self.peek()
            note, line = self.note, self.tokens[self.at][1]
            name = self.take()
            if name in (";", ",") or (name in MODIFIERS and self.peek() not in (":", "?", "(")):
                continue
            if name == "[":
                more = self.read_index(place)
                continue
            optional = self.peek() == "?"
            if optional:
                self.take()
            name = _unquote(name) if name[:1] in "\"'" else name
            inner = f"{place}/properties/{point(name)}"
            if self.peek() in ("(", "<"):
                self.skip_method(inner)
                continue
            self.expect(":")
            schema = self.read_type(inner)
            if schema == NOTHING:
                continue
            properties[name] = {**({"description": note} if note else {}), **schema}
            self.trace[inner] = {"claims": {"type": claim("declared", f"line {line} of the source")}}
            required += [] if optional or self.may_be_absent else [name]
        self.expect("}")
        extra = {"additionalProperties": more} if more is not None else {}
        return {"type": "object", "properties": properties, **({"required": required} if required else {}), **extra}

    def read_index(self, place):
        """`[key: string]: number`: any other key has this type."""
        while self.peek() not in ("]", ""):
            self.take()
        self.expect("]")
        self.expect(":")
        return self.read_type(place)

    def skip_method(self, place):
        depth = 0
        while self.peek():
            depth += {"(": 1, "<": 1, ")": -1, ">": -1}.get(self.take(), 0)
            if not depth and self.peek() not in ("(", "<"):
                break
        if self.peek() == ":":
            self.take()
            self.read_type(place)

    def resolve(self, schema, main, title):
        """References lead to what is declared: to the whole schema where that is meant, nowhere where nobody says."""
        if isinstance(schema, list):
            return [self.resolve(item, main, title) for item in schema]
        if not isinstance(schema, dict):
            return schema
        if "partial of" in schema:
            whole = schema.pop("partial of")
            whole = self.types.get(_name_target(whole), whole)
            return self.resolve({**schema, **{key: value for key, value in whole.items() if key != "required"}}, main, title)
        if "$ref" not in schema:
            return {key: self.resolve(value, main, title) for key, value in schema.items()}
        target = _name_target(schema)
        rest = {key: value for key, value in schema.items() if key != "$ref"}
        if target == main:
            return {**rest, "$ref": "#"}
        if target in self.types:
            return schema
        claims = self.trace.setdefault(f"/$defs/{point(title)}", {"claims": {}})["claims"]
        claims[f"type {target}"] = claim("assumed", f"type {target!r} is not declared here: any value is allowed")
        return rest

    def find_used(self, types, main):
        """Those that the main type leads to, through others too."""
        used, unseen = {}, [types[main]]
        while unseen:
            for title in re.findall(r'"#/\$defs/((?:[^"\\]|\\.)*)"', json.dumps(unseen.pop(), ensure_ascii=False)):
                name = title.replace("~1", "/").replace("~0", "~")
                if name not in used:
                    used[name] = types[name]
                    unseen.append(types[name])
        return {title: used[title] for title in types if title in used}

    def peek(self):
        while self.at < len(self.tokens) and self.tokens[self.at][0].startswith(("/*", "//")):
            self.note = " ".join(re.sub(r"[/*]+", " ", self.tokens[self.at][0]).split())
            self.at += 1
        return self.tokens[self.at][0] if self.at < len(self.tokens) else ""

    def look(self, ahead):
        return self.tokens[self.at + ahead][0] if self.at + ahead < len(self.tokens) else ""

    def take(self):
        token = self.peek()
        self.at += 1
        return token

    def expect(self, wanted):
        found = self.take()
        if found != wanted:
            raise self.refuse(f"{wanted!r} is missing before {found or 'the end'!r}")

    def refuse(self, why):
        at = min(max(self.at - 1, 0), len(self.tokens) - 1)
        return Unreadable(f"line {self.tokens[at][1]}: {why}" if self.tokens else why)


def _name_target(schema):
    return schema.get("$ref", "").removeprefix("#/$defs/").replace("~1", "/").replace("~0", "~")


def _unquote(token):
    """A text as it is meant; both kinds of quotes escape alike."""
    inner = token[1:-1].replace("\\'", "'")
    try:
        return json.loads('"' + re.sub(r'(?<!\\)"', '\\"', inner) + '"')
    except ValueError:
        return inner
