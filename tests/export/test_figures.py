"""Figures as people read them."""

from __future__ import annotations

import pytest

from export.figures import count_text, size_text


@pytest.mark.parametrize(
    ("count", "text"), [(0, "0 B"), (1023, "1023 B"), (1024, "1.0 KiB"), (3 << 29, "1.5 GiB"), (1 << 62, "4096.0 PiB")]
)
def test_size_text_is_short(count: int, text: str) -> None:
    assert size_text(count) == text


@pytest.mark.parametrize(("count", "text"), [(0, "0 files"), (1, "1 file"), (2, "2 files")])
def test_count_text_of_one_is_singular(count: int, text: str) -> None:
    assert count_text(count, "file") == text
