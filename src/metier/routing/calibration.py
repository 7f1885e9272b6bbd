from typing import NamedTuple
class Evidence(NamedTuple):
    strength: float
    share_of_best: float
def calibrate(e: Evidence) -> float:
    return 100*e.share_of_best
