"""The clauses of a description that say when a skill is used, and when it is not. Pure.

"Do not use for X" brings requests for X to the wrong skill when its words are indexed like the others, so it is left
out. What follows "Use when" is written in the words of requests and counts a little more.
"""

import re

from metier.lazy_regex import lazy_regex

_EXCLUSION = lazy_regex(
    r"(?:\b(?:do not|don't|don’t|never|not)\s+"
    r"(?:use|trigger|invoke|activate|apply|call|load|for|intended|meant|suitable)\b"
    r"|\bskip (?:on|for|when|if|this)\b|\bavoid (?:for|when|using)\b|\bexcept when\b)[^.;\n]*",
    re.IGNORECASE,
)
_EXCLUSION_SIGNS = ("not", "don", "never", "skip", "avoid", "except")
"""Without one of these there is no such clause; looking for them takes a tenth of the time."""
_TRIGGER = lazy_regex(
    r"\b(?:use (?:this (?:skill )?)?(?:when|for|if|to|whenever|after|before|with)|triggers?\b|when (?:the )?users?"
    r"|invoke when|activates? (?:when|on|for)|also use|should be used)",
    re.IGNORECASE,
)


def leave_out_exclusions(description: str) -> str:
    """The description without what the skill is not for; whole where nothing else would be left."""
    folded = description.casefold()
    if not any(sign in folded for sign in _EXCLUSION_SIGNS):
        return description
    kept = _EXCLUSION.sub(" . ", description)
    return kept if any(character.isalnum() for character in kept) else description


def find_trigger_clauses(description: str) -> str:
    """What follows the first "Use when" or the like."""
    match = _TRIGGER.search(description)
    return description[match.start() :] if match else ""
