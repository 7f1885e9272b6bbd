"""Unknown words are read as the nearest known spellings."""

from hypothesis import given
from hypothesis import strategies as st
from rapidfuzz.distance import OSA

from metier.routing.ranking import CERTAINTY, MIN_SIMILARITY, build_index, list_meanings
from metier.routing.skill import RoutableSkill

WORDS = (
    "banana bananas banner balance ballad accommodation accomodate mississippi missing committee commitee command "
    "database databases dataset deploy deployment depth10 depth100 book bookkeeper bookkeeping café cafeteria naïve"
)
INDEX = build_index([RoutableSkill(id="all", name="all", description=WORDS)])
KNOWN = [form for form in INDEX.tables.forms if len(form) > 2]

letters = st.sampled_from("abcdeikmnopst1é")
misspelt = st.sampled_from(WORDS.split()).flatmap(
    lambda word: st.tuples(
        st.just(word), st.integers(1, len(word)), st.integers(0, 2), st.text(letters, max_size=2)
    ).map(lambda slip: slip[0][: slip[1]] + slip[3] + slip[0][slip[1] + slip[2] :])
)


@given(misspelt)
def test_every_sufficiently_similar_spelling_is_found(word: str) -> None:
    if not 4 <= len(word) <= 40 or word.isdigit():
        return
    found = {meaning.word for meaning in list_meanings(word, INDEX.tables)}
    near = [
        (CERTAINTY * OSA.normalized_similarity(word, form), form)
        for form in KNOWN
        if form[0] == word[0] and OSA.normalized_similarity(word, form) >= MIN_SIMILARITY
    ]

    weights = sorted([meaning.weight for meaning in list_meanings(word, INDEX.tables)])
    assert all(form in found or (len(found) == 3 and weight <= weights[0]) for weight, form in near)
