"""A segment that equals the older version's is a link to it, unless that goes away meanwhile."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from bundle.tables.segment_writer import SegmentWriter
from bundle.tables.sharding import ShardNumber

CONTENT = np.random.default_rng(5).integers(0, 256, 600_001, np.uint8)


@pytest.mark.parametrize("trouble", ["", "removed", "replaced"])
def test_a_segment_is_whole_whatever_becomes_of_the_older_file(
    tmp_path: Path, trouble: str
) -> None:
    older = tmp_path / "older"
    CONTENT.tofile(older)
    with SegmentWriter(tmp_path / "new", older=older) as writer:
        writer.write(CONTENT)
        if trouble == "removed":
            older.unlink()
        if trouble == "replaced":
            (tmp_path / "other").write_bytes(b"another")
            (tmp_path / "other").rename(older)
    assert writer.is_reused is (trouble == "")
    assert (tmp_path / "new").read_bytes() == CONTENT.tobytes()


@pytest.mark.parametrize(
    "text", ["", "1", "0/4", "5/4", "1/0", "a/b", "1/4/2", "-1/4", "1 / 4", "01/4"]
)
def test_any_other_text_is_no_shard(text: str) -> None:
    with pytest.raises(ValueError, match="is no shard"):
        ShardNumber.parse(text)
