from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

from export.checkpoint.inventory.recognition import recognize
from export.checkpoint.reader import open_checkpoint
from export.errors import DestinationError
from export.jobs.space import check_plan_fits, check_space
from export.tables.plan import plan_tables
from tests.units.export.checkpoint.dump_files import sok_dump


def free(monkeypatch: pytest.MonkeyPatch, count: int) -> None:
    monkeypatch.setattr("shutil.disk_usage", lambda _: SimpleNamespace(free=count))


def test_space_that_is_just_enough_is_enough(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    free(monkeypatch, 3000)
    check_space(tmp_path, 3000)
    with pytest.raises(DestinationError) as failure:
        check_space(tmp_path / "not" / "yet", 4030, ", or link")
    assert str(failure.value) == (
        f"{tmp_path}/not/yet has 2.9 KiB free, the tables need 3.9 KiB: 1.0 KiB more; free some, "
        "or export to another disk, or link"
    )


def test_index_of_keys_needs_its_entries_twice_while_it_is_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    sok_dump(tmp_path / "dump", "t", np.arange(3), np.zeros((3, 2), np.float32))
    checkpoint = open_checkpoint(tmp_path / "dump")
    plan = plan_tables(checkpoint, recognize(checkpoint), tmp_path / "staged")
    # 16 bytes for each key in a file to be sorted, and in the index behind 16 bytes.
    needed = 3 * 8 + 3 * 16 + 16 + 3 * 16
    free(monkeypatch, needed)
    check_plan_fits(plan, tmp_path)
    free(monkeypatch, needed - 1)
    with pytest.raises(DestinationError, match="1 B more"):
        check_plan_fits(plan, tmp_path)

    # An earlier run left some of it, and removes or goes on with the rest.
    (tmp_path / "staged").mkdir()
    (tmp_path / "staged" / "begun").write_bytes(b"x" * 4096)
    free(monkeypatch, 0)
    check_plan_fits(plan, tmp_path)
