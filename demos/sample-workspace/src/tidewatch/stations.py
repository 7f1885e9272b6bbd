"""The stations: where they are, and from which level on people are warned."""

import csv
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True)
class Station:
    """A harbour with a gauge. Levels are metres above chart datum."""

    code: str
    name: str
    latitude: float
    alert_level: float


def load_stations(path: Path) -> dict[str, Station]:
    """Read the stations from a CSV file, by code."""
    # TODO(marek): refuse a station without an alert level
    with path.open(encoding="utf-8", newline="") as stream:
        rows = list(csv.DictReader(stream))
    return {
        row["code"]: Station(row["code"], row["name"], float(row["latitude"]), float(row["alert_level"]))
        for row in rows
    }
