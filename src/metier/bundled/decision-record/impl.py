"""Write an architecture decision record with a person: ask for what is missing, check that it holds together, render it.

Needs nothing but Python. `execute` is called by Metier, one call a turn.
"""

import datetime
import re

FOLDERS = ("docs/decisions", "docs/adr", "doc/adr", "docs/architecture/decisions", "adr")
STATUSES = ("proposed", "accepted", "rejected", "deprecated", "superseded")
MIN_OPTIONS = 2
_NUMBERED = re.compile(r"(\d{1,5})[-_ ].*\.md$")
_ABOUT = re.compile(
    r"(?:decision record|adr|decision)s?\b[^\n]*?(?:\bfor\b|\babout\b|\bon\b|:)\s*(?P<title>[^\n]{3,120})", re.IGNORECASE
)


def execute(context):
    """One turn: everything that is missing is asked for at once, what does not fit together afterwards."""
    given = dict(context.inputs)
    record = {
        "title": clean(given.get("title")) or find_title(given.get("task") or ""),
        "context": clean(given.get("context")),
        "options": read_list(given.get("options")),
        "decision": clean(given.get("decision")),
        "reasons": read_reasons(given.get("reasons")),
        "consequences": read_list(given.get("consequences")),
        "status": given.get("status") or "accepted",
        "date": given.get("date") or datetime.date.today().isoformat(),
    }
    request = ask_for_missing(record) or ask_for_choice(record) or ask_for_reasons(record, context)
    return request or finish(record, context.workspace)


def clean(value):
    return " ".join(str(value).split()) if value not in (None, "") else ""


def read_list(value):
    """A list, or text with one item a line, or items separated by semicolons."""
    items = value if isinstance(value, list) else re.split(r"\n|;", str(value or ""))
    cleaned = [clean(re.sub(r"^\s*(?:[-*]|\d+[.)])\s+", "", str(item))) for item in items]
    return list(dict.fromkeys(item for item in cleaned if item))


def read_reasons(value):
    """`{option: why not}`, or lines of `option: why not`."""
    if isinstance(value, dict):
        return {clean(key).casefold(): clean(text) for key, text in value.items() if clean(text)}
    pairs = (line.partition(":") for line in read_list(value))
    return {clean(name).casefold(): clean(text) for name, _, text in pairs if clean(text)}


def find_title(task):
    found = _ABOUT.search(task)
    return clean(found["title"]).rstrip(".?!") if found else ""


def ask_for_missing(record):
    fields = []
    if not record["title"]:
        fields.append(field("title", "What was decided about, in a few words"))
    if not record["context"]:
        fields.append(field("context", "The situation and the forces: why a decision was needed"))
    if len(record["options"]) < MIN_OPTIONS:
        fields.append(field("options", "The options that were considered, one a line or separated by ';' (at least two)"))
    if not record["decision"]:
        fields.append(field("decision", "Which option was chosen"))
    if not record["consequences"]:
        fields.append(field("consequences", "What becomes easier and harder because of it, one a line or separated by ';'"))
    return ask("A decision record needs a few answers", *fields) if fields else None


def ask_for_choice(record):
    """The decision must be one of the options."""
    chosen = [option for option in record["options"] if matches(option, record["decision"])]
    if len(chosen) == 1:
        record["chosen"] = chosen[0]
        return None
    several = f"'{record['decision']}' could mean several options" if chosen else f"'{record['decision']}' is none of the options"
    return ask(several, {**field("decision", "Which option was chosen"), "enum": record["options"]})


def matches(option, decision):
    option, decision = option.casefold(), decision.casefold()
    return option == decision or bool(re.search(rf"\b{re.escape(option)}\b", decision)) or option.startswith(f"{decision} ")


def ask_for_reasons(record, context):
    """Why the others were not chosen: asked once, so that nobody is held up by it."""
    others = [option for option in record["options"] if option != record["chosen"]]
    silent = [option for option in others if option.casefold() not in record["reasons"]]
    if not silent or context.recall("asked_for_reasons"):
        return None
    context.remember("asked_for_reasons", True)
    wanted = field("reasons", f"Why not {', '.join(silent)}: 'option: reason', one a line or separated by ';'")
    return ask("Whoever reads this later will ask why the others were not chosen", {**wanted, "required": False})


def finish(record, workspace):
    folder, number = find_place(workspace)
    slug = re.sub(r"[^a-z0-9]+", "-", record["title"].casefold()).strip("-")[:60] or "decision"
    name = f"{number:04d}-{slug}.md"
    text = render(record, number)
    outputs = {
        "summary": f"Decision record {number}: {record['title']} ({record['chosen']}); it belongs into {folder}/{name}",
        "path": f"{folder}/{name}", "document": text, "number": number, "chosen": record["chosen"],
    }  # fmt: skip
    return {"state": "completed", "outputs": outputs, "artifacts": {name: text}}


def find_place(workspace):
    """The folder that the project uses for its records, and the next number in it."""
    for folder in FOLDERS:
        path = workspace / folder
        if path.is_dir():
            numbers = [int(found[1]) for file in path.iterdir() if (found := _NUMBERED.match(file.name))]
            return folder, max(numbers, default=0) + 1
    return FOLDERS[0], 1


def render(record, number):
    lines = [f"# {number}. {record['title']}", "", f"Date: {record['date']}", f"Status: {record['status']}", ""]
    lines += ["## Context", "", record["context"], "", "## Options", ""]
    for option in record["options"]:
        reason = record["reasons"].get(option.casefold(), "")
        mark = " (chosen)" if option == record["chosen"] else f": not chosen{', because ' + reason if reason else ''}"
        lines.append(f"- {option}{mark}")
    because = record["reasons"].get(record["chosen"].casefold(), "")
    lines += ["", "## Decision", "", f"{record['chosen']}{', because ' + because if because else ''}.", ""]
    lines += ["## Consequences", "", *(f"- {item}" for item in record["consequences"]), ""]
    return "\n".join(lines)


def field(name, description):
    return {"name": name, "description": description}


def ask(message, *fields):
    return {"state": "input_required", "input_request": {"message": message, "missing_fields": list(fields)}}
