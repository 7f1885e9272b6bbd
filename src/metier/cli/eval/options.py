"""What a call of `agent eval` asks for."""

from pathlib import Path

from metier.dataclass import dataclass
from metier.evals.results import Mode


@dataclass(frozen=True, slots=True, kw_only=True)
class EvalOptions:
    """What was asked for."""

    cases: tuple[str, ...] = ()
    record: bool = False
    live: bool = False
    repeat: int = 1
    against: str = ""
    judge: str = ""
    max_cost_usd: float | None = None
    jobs: int = 4
    resume: str = ""
    triggers: bool = False
    suggest: bool = False
    threshold: float = 1.0
    junit: Path | None = None
    html: Path | None = None
    out: Path | None = None
    provider: str = ""
    model: str = ""
    as_json: bool = False

    @property
    def mode(self) -> Mode:
        return "record" if self.record else "live" if self.live or self.resume else "replay"
