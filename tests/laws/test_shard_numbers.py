"""The number of a shard is a fraction."""

from __future__ import annotations

import pytest

from bundle.tables.shard_number import ShardNumber


@pytest.mark.parametrize(
    "text", ["", "1", "0/4", "5/4", "1/0", "a/b", "1/4/2", "-1/4", "1 / 4", "01/4"]
)
def test_any_other_text_is_no_shard(text: str) -> None:
    with pytest.raises(ValueError, match="is no shard"):
        ShardNumber.parse(text)
