"""IDs are unique, even in a forked process."""

import subprocess
import sys

from metier.ids import SystemIds

_FORK = """
import os
from metier.ids import SystemIds

ids = SystemIds()
ids.span_id()
child = os.fork()
text = "".join(ids.span_id() + "\\n" for _ in range(40))
os.write(1, text.encode())
if child:
    os.waitpid(child, 0)
"""


def test_span_ids_have_the_trace_context_size_and_are_unique() -> None:
    ids = SystemIds()

    given = [ids.span_id() for _ in range(1000)]

    assert len(set(given)) == 1000
    assert all(len(one) == 16 and int(one, 16) >= 0 for one in given)


def test_a_forked_process_does_not_reuse_pregenerated_ids_of_its_parent() -> None:
    done = subprocess.run([sys.executable, "-c", _FORK], capture_output=True, text=True, check=True)

    given = done.stdout.split()
    assert len(given) == 80
    assert len(set(given)) == 80
