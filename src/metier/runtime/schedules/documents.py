"""A schedule as JSON, the same on the command line and over HTTP. Pure."""

from pydantic import JsonValue

from metier.runtime.schedules.known import ScheduleHistory


def schedule_as_json(history: ScheduleHistory) -> dict[str, JsonValue]:
    schedule = history.schedule
    return {
        **schedule.definition.model_dump(mode="json"),
        "origin": schedule.origin,
        "paused": schedule.is_paused,
        "withheld": schedule.withheld or None,
        "next": [moment.isoformat() for moment in history.next_times] if schedule.is_active else [],
        "firings": [
            {
                "due_at": firing.due_at.isoformat(),
                "outcome": firing.outcome,
                "run_id": firing.run_id or None,
                "status": run.status if (run := history.runs.get(firing.run_id)) else None,
                "reason": firing.reason,
            }
            for firing in history.firings
        ],
    }
