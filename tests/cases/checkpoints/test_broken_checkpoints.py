"""What is broken in a checkpoint, and the exit code and words that its user gets."""

from __future__ import annotations

import pickle
from pathlib import Path

import pytest

from tests.cases.checkpoints.broken_dumps import BROKEN_DUMPS
from tests.cases.checkpoints.broken_indexes import BROKEN_INDEXES
from tests.cases.checkpoints.broken_keras import BROKEN_KERAS
from tests.cases.checkpoints.broken_orbax import BROKEN_ORBAX
from tests.cases.checkpoints.broken_torch import (
    BROKEN_DISTRIBUTED,
    BROKEN_SAFETENSORS,
    Runs,
    distributed,
    metadata,
    part,
)
from tests.cases.checkpoints.inspections import Case, rejected
from tests.cases.checkpoints.unreadable_paths import UNREADABLE_PATHS

BROKEN: dict[str, dict[str, Case]] = {
    "TensorFlow": BROKEN_INDEXES,
    "Orbax": BROKEN_ORBAX,
    "Keras": BROKEN_KERAS,
    "torch.distributed": BROKEN_DISTRIBUTED,
    "safetensors": BROKEN_SAFETENSORS,
    "parameter servers": BROKEN_DUMPS,
    "nobody": UNREADABLE_PATHS,
}
"""By who writes such checkpoints."""
CASES = [(writer, case) for writer, cases in BROKEN.items() for case in cases]


@pytest.mark.parametrize(("writer", "case"), CASES)
def test_broken_checkpoint_exits_3_and_says_what_is_broken(
    writer: str, case: str, tmp_path: Path
) -> None:
    write, *words = BROKEN[writer][case]
    path = write(tmp_path)
    message = rejected(path)
    for expected in words:
        assert expected.format(path=path) in message


def test_code_that_a_checkpoint_names_is_not_run(tmp_path: Path) -> None:
    file = tmp_path / "made"
    pickled = pickle.dumps(Runs(file))
    for number, content in enumerate((metadata(pickled), distributed(part(Runs(file))))):
        directory = tmp_path / str(number)
        directory.mkdir()
        assert "it names" in rejected(content(directory))
        assert not file.exists()
    pickle.loads(pickled)
    assert file.exists()  # the pickle itself works
