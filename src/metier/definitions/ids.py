"""IDs of definitions: the folder's path under its collection, compared without case and Unicode form."""

import unicodedata


def fold_id(id: str) -> str:  # noqa: A002 - the word of the format
    """The form in which two IDs are the same on a disk that knows no case: `Foo/Bar` and `foo/bar`."""
    return unicodedata.normalize("NFKC", id).casefold()
