"""Greetings as tools: the smallest toolset that shows types, descriptions, results and errors.

The clock, tone and occasions are the business of the script `advanced_greeting`, not of this class.
"""

from collections.abc import Callable
from typing import Annotated, Any

from metier.tools.toolsets import AgentToolset, declare
from pydantic import Field

GREETINGS = {
    "ar": ("Arabic", "مرحبا {name}!"),
    "de": ("German", "Hallo {name}!"),
    "en": ("English", "Hello, {name}!"),
    "es": ("Spanish", "¡Hola, {name}!"),
    "fr": ("French", "Bonjour {name} !"),
    "hi": ("Hindi", "नमस्ते {name}!"),
    "it": ("Italian", "Ciao {name}!"),
    "ja": ("Japanese", "こんにちは、{name}さん!"),
    "ko": ("Korean", "안녕하세요, {name}님!"),
    "nl": ("Dutch", "Hallo {name}!"),
    "pl": ("Polish", "Cześć {name}!"),
    "pt": ("Portuguese", "Olá, {name}!"),
    "sv": ("Swedish", "Hej {name}!"),
    "sw": ("Swahili", "Habari {name}!"),
    "tr": ("Turkish", "Merhaba {name}!"),
    "uk": ("Ukrainian", "Привіт, {name}!"),
    "zh": ("Chinese", "你好,{name}!"),
}
MOST_NAMES = 50
LONGEST_NAME = 200


def find_code(language: str) -> str | None:
    """The code for a code or an English name: 'de', 'DE', 'de-AT' and 'German' are the same."""
    wanted = language.strip().casefold()
    by_name = {name.casefold(): code for code, (name, _) in GREETINGS.items()}
    code = by_name.get(wanted, wanted.replace("_", "-").split("-")[0])
    return code if code in GREETINGS else None


class HelloExtended(AgentToolset):
    """Greet one person or several, in many languages."""

    def get_tools(self) -> list[Callable[..., Any]]:
        return [self.greet_in_language, self.greet_multiple, self.list_languages]

    @declare(effect="read", risk="low")
    async def greet_in_language(
        self,
        name: Annotated[str, Field(description="Who is greeted, for example 'Ada'")],
        language: Annotated[str, Field(description="Code or English name: 'de', 'German'")] = "en",
    ) -> dict[str, Any]:
        """Greet one person in one language."""
        code = find_code(language)
        if code is None:
            return self._error("unknown_language", f"No greeting in '{language}'; known: {', '.join(GREETINGS)}")
        name = name.strip()
        if not name or len(name) > LONGEST_NAME:
            return self._error("invalid_name", f"A name has 1 to {LONGEST_NAME} characters, not {len(name)}")
        title, pattern = GREETINGS[code]
        return self._success(pattern.replace("{name}", name), f"Greeted '{name}' in {title}")

    @declare(effect="read", risk="low")
    async def greet_multiple(
        self,
        names: Annotated[list[str], Field(description="Who is greeted, at most 50 names")],
        language: Annotated[str, Field(description="Code or English name: 'de', 'German'")] = "en",
    ) -> dict[str, Any]:
        """Greet several people in one language. Either all are greeted or none."""
        if not names or len(names) > MOST_NAMES:
            return self._error("invalid_names", f"Give 1 to {MOST_NAMES} names, not {len(names)}")
        answers = [await self.greet_in_language(name, language) for name in names]
        failed = next((answer for answer in answers if not answer["success"]), None)
        return failed or self._success([answer["result"] for answer in answers], f"Greeted {len(names)} people")

    @declare(effect="read", risk="low")
    async def list_languages(self) -> dict[str, Any]:
        """List the languages that greetings exist in, by code."""
        languages = {code: title for code, (title, _) in GREETINGS.items()}
        return self._success(languages, f"{len(languages)} languages")
