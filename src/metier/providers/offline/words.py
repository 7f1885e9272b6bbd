"""Keywords, stop words and verbs of requests. Pure."""

import re

MAX_KEYWORDS = 12
MAX_KEYWORD_CHARACTERS = 60

_STOP_TEXT = """
a about above after afterwards again all also always am an and another any anything are as at away back be because
been before being below between both but by can cannot could did do does doing done down during each either else
ever every everything few finally first for from further had has have having he her here his how however i if in
into is it its just kindly last later let like lot made make may me might more most much must my near need needs
new next no none nor not nothing now of off often on once one only onto or other others our out over own per perhaps
please quick quickly rather same second shall she should since so some someone something soon still such sure than
thank thanks that the their them then there these they thing things third this those though through thus to today
together too under until up upon us use using very via want wanted was way we well were what whatever when where
whether which while who whom whose why will with within without would yes yet you your
aber alle alles als am an auch auf aus bei bis bitte da dann das dass dein dem den der des die diese diesem diesen
dieser dieses doch du ein eine einem einen einer eines er es für gibt hat hier ich ihr im in ist jede jeden jeder
jedes kann können man mein mich mir mit nach nicht noch nun nur ob oder ohne schon sein sich sie sind so soll und uns
unter vom von vor war was welche wenn werden wie wird wir wo zu zuerst zum zunächst zur über
ai au aux avec ce ces cette chaque dans de des du elle elles en est et il ils je la le les leur ma mais me mes moi mon
ne nos notre nous ou où par pas pour quel quelle qui quoi sa se ses si son sont sur ta te tes toi ton tous tout toute
toutes très tu un une vos votre vous
al como con cual cuando del donde dónde el ella ellos en entre era es esta estas este esto estos está favor hay
la las lo los más mi mis muy no nos nuestro o para pero por porque primero que qué se sin sobre son su sus también
te tiene toda todas todos un una unas uno unos y ya
"""
STOP_WORDS = frozenset(_STOP_TEXT.split())

_ASKING_TEXT = """
appear appears collect count directory display extract file files find folder folders get give grep identify instance
instances keyword keywords list locate look mention mentioned mentions occur occurrence occurrences occurs passage
passages phrase phrases place places project repo repository report search see show skill snippet snippets tell text
word words workspace
datei dateien finde liste ordner projekt suche wort wörter zeige
cherche dossier fichier fichiers liste montre trouve
archivo archivos busca carpeta encuentra lista muestra
"""
ASKING_WORDS = frozenset(_ASKING_TEXT.split())
"""Words that ask for a search and are not search terms themselves."""

_VERB_TEXT = """
add analyse analyze build check collect compare compile convert count create describe draft export extract fetch find
gather generate get give greet identify inventory list look make prepare print produce read review run save say scan
search send show summarise summarize take tell translate use write
erstelle fasse finde liste mache sammle schreibe suche zeige zähle
cherche crée fais liste montre rédige résume trouve écris
busca crea encuentra escribe haz lista muestra redacta resume
"""
VERBS = tuple(sorted(frozenset(_VERB_TEXT.split())))
"""Verbs that open an instruction. After "and", a comma or a full stop they may start another part."""

_WORD = re.compile(r"[^\W_](?:[\w./+#'’-]*[\w+#])?")
_QUOTED = re.compile(
    r'"([^"\n]{2,200})"|“([^“”\n]{2,200})[“”]|„([^„“”\n]{2,200})[“”]|«([^«»\n]{2,200})»|`([^`\n]{2,200})`'
    r"|(?<!\w)'([^'\n]{2,200})'(?!\w)|‘([^‘’\n]{2,200})’(?!\w)|「([^「」\n]{1,200})」"
)


def split_words(text: str) -> list[str]:
    """Split into words as written; paths, versions and hyphenated names stay whole."""
    return _WORD.findall(text)


def list_content_words(text: str) -> list[str]:
    """List the words that are not stop words, each once, in order."""
    words = (word for word in split_words(text) if word.casefold() not in STOP_WORDS)
    return list({word.casefold(): word for word in reversed(list(words))}.values())[::-1]


def list_keywords(text: str, *, without: frozenset[str] = frozenset()) -> list[str]:
    """List the search terms of a request: its quoted phrases, or else its content words that don't just ask.

    `without` has more words to skip, in lower case, such as the name of the skill.
    """
    quoted = [next(group for group in match.groups() if group) for match in _QUOTED.finditer(text)]
    phrases = [" ".join(phrase.replace(",", " ").split()) for phrase in quoted]
    found = [phrase for phrase in phrases if phrase and phrase.casefold() not in without]
    if not found:
        skipped = ASKING_WORDS | without
        found = [word for word in list_content_words(text) if word.casefold() not in skipped]
    unique = {word.casefold(): word[:MAX_KEYWORD_CHARACTERS].strip() for word in reversed(found)}
    return list(unique.values())[::-1][:MAX_KEYWORDS]


def list_matched(text: str, described: str) -> list[str]:
    """List the words of the request that also occur in a skill's name or description, ignoring endings."""
    known = {_root(word) for word in split_words(described.replace("-", " "))}
    return [word for word in list_content_words(text) if _root(word) in known]


def _root(word: str) -> str:
    folded = word.casefold()
    return folded[: max(4, len(folded) - 3)]
