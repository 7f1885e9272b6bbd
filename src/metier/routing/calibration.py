"""Turn sums of matches into scores on 0-100 that mean the same in a catalog of ten skills and of ten thousand. Pure.

A score answers two questions at once. Is there an answer here at all? And how near is this skill to the best one?
`docs/routing.md` says how the constants were found.
"""

import math

SOLID_EVIDENCE = 0.713
"""Strength at which an answer is as likely as none; 0.75 gives the usual cut of 55."""
STEEPNESS = 4
NEARNESS_POWER = 0.54
"""A skill with a third of the best one's sum keeps 55 of 100."""

RARITY_POWER = 0.9
"""Below 1: one rare word does not outweigh several ordinary ones."""


def find_strength(best: float, catalog_size: int) -> float:
    """How many words that no other skill has the best match is worth; independent of the size of the catalog."""
    return best / find_rarity(0, catalog_size) ** RARITY_POWER


def calibrate(total: float, best: float, strength: float) -> float:
    """The score of one skill, given the best sum of the request and its strength."""
    if total <= 0 or best <= 0:
        return 0.0
    certainty = strength**STEEPNESS / (strength**STEEPNESS + SOLID_EVIDENCE**STEEPNESS)
    return round(100 * certainty * min(1.0, total / best) ** NEARNESS_POWER, 2)


def find_rarity(having: float, catalog_size: int) -> float:
    """How much a word tells that so many skills have; 0 where all have it."""
    return math.log(1 + (catalog_size - having + 0.5) / (having + 0.5))
