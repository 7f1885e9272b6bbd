# /// script
# requires-python = ">=3.12"
# dependencies = []
# ///
"""Compose a greeting for a person, a time of day, a tone and an occasion.

Standard library only. With --json nothing but one JSON object goes to stdout.
"""

from __future__ import annotations

import argparse
import io
import json
import sys
from datetime import datetime
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

OPENINGS = {
    "morning": "Good morning",
    "afternoon": "Good afternoon",
    "evening": "Good evening",
    "night": "Hello",
}
CASUAL_OPENINGS = {"morning": "Morning", "afternoon": "Hi", "evening": "Evening", "night": "Hey, still up"}
OCCASIONS = {
    "none": "",
    "birthday": "Happy birthday!",
    "welcome": "Welcome aboard, it is good to have you here.",
    "thanks": "Thank you for your help.",
    "farewell": "All the best for what comes next.",
}


def part_of_day(hour: int) -> str:
    if 5 <= hour < 12:
        return "morning"
    if 12 <= hour < 18:
        return "afternoon"
    return "evening" if 18 <= hour < 23 else "night"


def compose(name: str, part: str, *, tone: str, occasion: str, note: str) -> str:
    """The parts of a greeting, each its own sentence; what is empty is left out."""
    opening = (CASUAL_OPENINGS if tone == "casual" else OPENINGS)[part]
    end = {"formal": ".", "warm": "!", "casual": "!"}[tone]
    sentences = [f"{opening}, {name}{end}", OCCASIONS[occasion], note.strip()]
    return " ".join(sentence for sentence in sentences if sentence)


def parse_moment(text: str, zone: str) -> datetime:
    """A moment in the wanted zone; without --time it is now, without --zone it is this machine's time."""
    try:
        place = ZoneInfo(zone) if zone else None
    except (ZoneInfoNotFoundError, ValueError) as error:
        raise argparse.ArgumentTypeError(f"unknown time zone '{zone}'") from error
    if not text:
        return datetime.now(place).astimezone(place)
    try:
        moment = datetime.fromisoformat(text)
    except ValueError as error:
        raise argparse.ArgumentTypeError(f"'{text}' is not an ISO time such as 2025-03-01T08:30") from error
    return moment.astimezone(place) if moment.tzinfo else moment


def build_parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(description="Compose a greeting for a person, time of day, tone and occasion.")
    parser.add_argument("--name", default="friend", help="who is greeted (default: %(default)s)")
    parser.add_argument("--tone", choices=["formal", "warm", "casual"], default="warm", help="default: %(default)s")
    parser.add_argument("--occasion", choices=sorted(OCCASIONS), default="none", help="default: %(default)s")
    parser.add_argument("--note", default="", help="a personal sentence to add")
    parser.add_argument("--time", default="", help="ISO time to greet at (default: now)")
    parser.add_argument("--zone", default="", help="time zone such as Europe/Berlin (default: this machine's)")
    parser.add_argument("--json", action="store_true", dest="as_json", help="print one JSON object instead of text")
    return parser


def main() -> int:
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(encoding="utf-8", errors="backslashreplace")
    parser = build_parser()
    options = parser.parse_args()
    try:
        moment = parse_moment(options.time, options.zone)
    except argparse.ArgumentTypeError as error:
        parser.error(str(error))
    name = options.name.strip() or "friend"
    part = part_of_day(moment.hour)
    greeting = compose(name, part, tone=options.tone, occasion=options.occasion, note=options.note)
    if options.as_json:
        result = {"summary": greeting, "greeting": greeting, "name": name, "part_of_day": part}
        result |= {"tone": options.tone, "occasion": options.occasion, "time": moment.isoformat(timespec="minutes")}
        print(json.dumps(result, ensure_ascii=False, indent=2))
    else:
        print(greeting)
    return 0


if __name__ == "__main__":
    sys.exit(main())
