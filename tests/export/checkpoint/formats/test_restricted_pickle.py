"""Pickles are read without running what they name."""

from __future__ import annotations

import pickle
import sys
from pathlib import Path
from typing import Any

import pytest

from export.checkpoint.formats.coding import Malformed
from export.checkpoint.formats.restricted_pickle import load_restricted, record_class
from export.checkpoint.reader import open_checkpoint
from export.errors import CheckpointError


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


RECORD = record_class("Saved", ["name"])


def saved_as_record(module: str, name: str) -> Any:
    return RECORD if name == "Saved" else None


def test_object_of_an_allowed_class_is_its_attributes() -> None:
    actual = load_restricted(pickle.dumps({"a": Saved("x")}), saved_as_record)
    assert type(actual["a"]) is RECORD
    assert vars(actual["a"]) == {"name": "x"}


def test_object_with_an_attribute_that_is_not_known_is_malformed() -> None:
    saved = Saved("x")
    vars(saved)["order"] = [1, 0]
    with pytest.raises(Malformed, match="its Saved has 'order', which is not understood"):
        load_restricted(pickle.dumps(saved), saved_as_record)


def test_code_that_a_pickle_names_is_not_run(tmp_path: Path) -> None:
    marker = tmp_path / "made"
    data = pickle.dumps(Touches(marker))
    with pytest.raises(Malformed, match="it names pathlib"):
        load_restricted(data, saved_as_record)
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
        load_restricted(data, saved_as_record)


def test_deeply_nested_pickle_is_malformed_or_read() -> None:
    depth = sys.getrecursionlimit() * 10
    data = b"\x80\x05" + b"]" * depth + b"a" * (depth - 1) + b"."
    assert isinstance(load_restricted(data, saved_as_record), list)


def test_objects_outside_a_pickle_are_rejected() -> None:
    with pytest.raises(Malformed, match="outside"):
        load_restricted(b"\x80\x05\x8c\x01aQ.", saved_as_record)


def nested_tuples(levels: int, width: int) -> bytes:
    """Returns instructions that push a tuple of `levels` levels, each of `width` times the level
    below it.
    """
    text = b"(K\x01tq\x00"
    for level in range(levels):
        inner = b"h" + bytes([level])
        text += b"0(" + inner * width + b"tq" + bytes([level + 1])
    return text


def test_key_that_takes_without_end_to_hash_is_malformed() -> None:
    bomb = b"\x80\x02}" + nested_tuples(12, 10) + b"K\x01s."
    assert len(bomb) < 400
    with pytest.raises(Malformed, match="one of its tuples has more than 1,000,000 parts"):
        load_restricted(bomb, lambda *_: None)


@pytest.mark.parametrize("protocol", range(pickle.HIGHEST_PROTOCOL + 1))
def test_tuples_and_shared_objects_of_every_protocol_are_read(protocol: int) -> None:
    shared = ("a", 2, (3.5, None, True, b"bytes"))
    value = {
        "many": [shared] * 1000,
        shared: {"nested": [(), (1,), (1, 2), (1, 2, 3), tuple(range(50))]},
        "large": list(range(3000)),
        "sets": {1, 2, 3} if protocol >= 4 else [],
        "long": 1 << 100,
    }

    def substitute(module: str, name: str) -> Any:
        return {("_codecs", "encode"): lambda text, code: text.encode(code)}.get((module, name))

    assert load_restricted(pickle.dumps(value, protocol), substitute) == value
