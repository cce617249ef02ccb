"""What a comparison says while it waits."""

from types import SimpleNamespace

import pytest

from databus.core import SourceCheckpoint
from databus.pipeline._compare import _not_there

READING = SimpleNamespace(not_captured=lambda: "", not_reached=lambda position: f"the copy is at {position.scn}")


@pytest.mark.parametrize(
    ("position", "said"),
    [(None, "the copy has had no batch yet"), (SourceCheckpoint(scn=7), "the copy is at 7")],
)
def test_a_copy_without_a_batch_is_not_said_to_stand_somewhere(position, said):
    copy = SimpleNamespace(position=lambda: position, published=lambda deadline: None)
    assert _not_there(copy, READING, 0.0).startswith(said)
