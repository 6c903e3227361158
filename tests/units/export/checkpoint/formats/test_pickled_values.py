"""Pickles are read without running what they name."""

from __future__ import annotations

import pickle
import sys
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from export.checkpoint.formats.coding import Malformed
from export.checkpoint.formats.pickled_values import read_pickle, record_class
from export.checkpoint.reader import open_checkpoint
from export.errors import CheckpointError

SCALARS = (
    st.none()
    | st.booleans()
    | st.integers(-(1 << 70), 1 << 70)
    | st.floats(allow_nan=False)
    | st.text()
)
VALUES = st.recursive(
    SCALARS,
    lambda parts: (
        st.lists(parts)
        | st.lists(parts).map(tuple)
        | st.dictionaries(st.text(), parts)
        | parts.map(lambda part: [part, (part, part)])
    ),
    max_leaves=20,
)


class Saved:
    """A class of the program that pickles."""

    def __init__(self, name: str) -> None:
        self.name = name


class Touches:
    """Creates a file when its pickle is loaded."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> tuple[Any, ...]:
        return Path.touch, (self.path,)


RECORD = record_class("Saved", {"name": str})


def saved_as_record(module: str, name: str) -> Any:
    return RECORD if name == "Saved" else None


def test_object_of_an_allowed_class_is_its_attributes() -> None:
    actual = read_pickle(pickle.dumps({"a": Saved("x")}), saved_as_record)
    assert type(actual["a"]) is RECORD
    assert vars(actual["a"]) == {"name": "x"}


def test_object_with_an_attribute_that_is_not_known_is_malformed() -> None:
    saved = Saved("x")
    vars(saved)["order"] = [1, 0]
    with pytest.raises(Malformed, match=r"these fields are unknown: Saved\.order\."):
        read_pickle(pickle.dumps(saved), saved_as_record)


def test_code_that_a_pickle_names_is_not_run(tmp_path: Path) -> None:
    marker = tmp_path / "made"
    data = pickle.dumps(Touches(marker))
    with pytest.raises(Malformed, match="it names pathlib"):
        read_pickle(data, saved_as_record)
    assert not marker.exists()
    pickle.loads(data)
    assert marker.exists()  # the pickle itself works


def test_metadata_that_names_code_is_rejected_and_not_run(tmp_path: Path) -> None:
    marker = tmp_path / "made"
    (tmp_path / "c").mkdir()
    (tmp_path / "c/.metadata").write_bytes(pickle.dumps(Touches(marker)))
    with pytest.raises(CheckpointError, match=r"\.metadata cannot be read: it names"):
        open_checkpoint(tmp_path / "c")
    assert not marker.exists()


@pytest.mark.parametrize("data", [b"", b"\x80", b"\x80\x05.", b"\x80\x05]\x8c\xff.", b"PK\x03\x04"])
def test_damaged_pickle_is_malformed(data: bytes) -> None:
    with pytest.raises(Malformed):
        read_pickle(data, saved_as_record)


def test_deeply_nested_pickle_is_malformed_or_read() -> None:
    depth = sys.getrecursionlimit() * 10
    data = b"\x80\x05" + b"]" * depth + b"a" * (depth - 1) + b"."
    assert isinstance(read_pickle(data, saved_as_record), list)


def test_objects_outside_a_pickle_are_rejected() -> None:
    with pytest.raises(Malformed, match="outside"):
        read_pickle(b"\x80\x05\x8c\x01aQ.", saved_as_record)


@given(VALUES, st.sampled_from([2, 3, 4, 5]))
def test_plain_values_of_every_protocol_are_read(value: Any, protocol: int) -> None:
    assert read_pickle(pickle.dumps(value, protocol), saved_as_record) == value
