"""No private module of a library is imported."""

import pytest
from source_facts import SOURCE, read_sources


@pytest.mark.slow
def test_no_private_module_of_a_library_is_imported() -> None:
    private = [
        f"{file.path.relative_to(SOURCE)}: {name}"
        for file in read_sources()
        if file.is_ours
        for name in file.imports
        if not name.startswith(("metier.", "__future__")) and any(part.startswith("_") for part in name.split("."))
    ]
    assert private == []
