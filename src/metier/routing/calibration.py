"""Turn sums of matches into scores on 0-100 that mean the same in a catalog of ten skills and of ten thousand. Pure.

A score answers two questions at once. Does the request say anything a skill knows? How near is this one to the best?
`docs/routing.md` says how the constants were found.
"""

import math

SOLID_EVIDENCE = 0.856
"""Strength that halves every score; chosen so that the best match reaches 55 at a strength of 0.9."""
STEEPNESS = 4
NEARNESS_POWER = 0.54
"""A skill with a third of the best one's sum keeps 55 of 100."""

RARITY_POWER = 0.9
"""Below 1: one rare word does not outweigh several ordinary ones."""

UNSEEN_SKILLS = 30
"""Imagined skills that have none of the words: in a catalog of ten on one subject, the subject still tells."""


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
    """How much a word tells that so many skills have."""
    return math.log(1 + (catalog_size + UNSEEN_SKILLS - having + 0.5) / (having + 0.5))
