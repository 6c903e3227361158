"""Storage formats of checkpoints: any array, cut anyhow, is read bit for bit, and a flipped bit in
any file, a file that is cut short, or one that is gone is a typed error or changes nothing.

Where a format keeps no checksum, nobody can notice other bits. A bit that is flipped among its
values changes this bit alone, or, if they are compressed, values of one chunk. One that is flipped
where it describes its arrays may describe others, and raises no error of another type.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import get_args

import numpy as np
import pytest
from hypothesis import Phase, given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from export.checkpoint.reader import Checkpoint, open_checkpoint
from export.checkpoint.variables import NUMPY_DTYPES, StorageKind
from object_store.locations import Location
from object_store.remote_path import RemotePath
from tests.laws.flipped_bits import (
    Flip,
    assert_within_reach,
    difference,
    flipped,
    opened_rows,
    read_unless_rejected,
)
from tests.laws.stored_arrays import (
    DTYPES,
    StoredArray,
    Values,
    random_values,
    stored_arrays,
)
from tests.laws.stored_formats import FORMATS, HDF5_FORMATS, Format
from tests.units.object_store.memory_stores import uploaded

# No key becomes another one by a flipped bit: of two tensors of one name, the header of safetensors
# may list the values of either, and damage that makes one of them the other's is not noticed.
KEYS = ("users", "movies", "genres", "tags", "brands", "words")
MANY = settings().max_examples // 5
FEW = settings().max_examples // 33
"""For formats that take long to open. A failure is not made smaller, which would take minutes."""
FLIPS = 4
"""Bits that are flipped, one after the other, in each checkpoint."""
WINDOW_BYTES = "export.checkpoint.formats.arrays.WINDOW_BYTES"
"""How much of an array is decoded at a time. Of less than usual, small arrays have windows, too."""
NUMBERS = st.integers(0, (1 << 32) - 1)


@st.composite
def checkpoints(draw: st.DrawFn, kind: Format, arrays_max: int) -> dict[str, StoredArray]:
    """Draws the arrays of a checkpoint."""
    any_array = stored_arrays(kind.dtypes, tuple(kind.encodings), kind.ranks, kind.extent_min)
    keys = KEYS[: draw(st.integers(1, arrays_max))]
    return {key: draw(any_array) for key in keys}


def assert_every_range_is_read(checkpoint: Checkpoint, key: str, values: Values) -> None:
    """Compares the whole array, and each range of rows."""
    entry = checkpoint.entries[key]
    assert (entry.dtype, entry.shape) == (values.dtype.name, values.shape)
    assert checkpoint.read_all(key).tobytes() == values.tobytes()
    if not values.ndim:
        return
    ends = range(len(values) + 1)
    ranges = [(first, end - first) for first in ends for end in ends[first:]]
    expected = [values[first : first + count] for first, count in ranges]
    for rows, expected_rows in zip(checkpoint.read_each(key, ranges), expected, strict=True):
        assert rows.tobytes() == expected_rows.tobytes()
    if values.ndim == 2 and values.size:
        copied = np.empty((sum(map(len, expected)), values[0].nbytes), np.uint8)
        with opened_rows(entry) as stored:
            stored.read_each([(first, count) for first, count in ranges if count], copied)
        assert copied.tobytes() == np.concatenate(expected).tobytes()


def check_that_arrays_are_read(kind: Format, data: st.DataObject, arrays_max: int) -> None:
    arrays = data.draw(checkpoints(kind, arrays_max))
    is_remote = kind.in_stores and data.draw(st.booleans())
    with TemporaryDirectory() as directory, pytest.MonkeyPatch.context() as patch:
        patch.setattr(WINDOW_BYTES, data.draw(st.sampled_from([1, 100, 16 << 20])))
        stored = kind.write(Path(directory), arrays)
        location: Location = Path(directory)
        if is_remote:
            location = uploaded(Path(directory), RemotePath(f"memory://{directory}"))
        checkpoint = open_checkpoint(location)
        assert set(checkpoint.entries) == set(stored)
        for key, values in stored.items():
            assert_every_range_is_read(checkpoint, key, values)
            array = checkpoint.entries[key].array
            if array is not None:
                assert array.chunk == arrays[key].chunk
                assert Path(array.file).is_relative_to(directory)


def every_dtype_and_encoding(kind: Format) -> dict[str, StoredArray]:
    """Returns arrays of each dtype and each encoding."""
    encodings = tuple(kind.encodings)
    return {
        f"array {number}": StoredArray(
            random_values(kind.dtypes[number % len(kind.dtypes)], (4, 3), seed=number + 1),
            (((0, 1), (0, 3)), ((1, 3), (0, 3))),
            (2, 2),
            encodings[number % len(encodings)],
        )
        for number in range(max(len(kind.dtypes), len(encodings)))
    }


def test_formats_are_all_that_are_read(tmp_path: Path) -> None:
    assert set(DTYPES) == set(NUMPY_DTYPES)
    kinds = set()
    for name, kind in (FORMATS | HDF5_FORMATS).items():
        (tmp_path / name).mkdir()
        stored = kind.write(tmp_path / name, every_dtype_and_encoding(kind))
        checkpoint = open_checkpoint(tmp_path / name)
        kinds.add(checkpoint.storage.kind)
        for key, values in stored.items():
            assert checkpoint.entries[key].dtype == values.dtype.name
            assert checkpoint.read_all(key).tobytes() == values.tobytes()
    assert kinds == set(get_args(StorageKind))


@pytest.mark.parametrize("name", FORMATS)
@settings(max_examples=MANY)
@given(data=st.data())
def test_any_array_cut_anyhow_is_read_bit_for_bit_in_every_range(
    name: str, data: st.DataObject
) -> None:
    check_that_arrays_are_read(FORMATS[name], data, arrays_max=3)


@pytest.mark.parametrize("name", HDF5_FORMATS)
@settings(max_examples=FEW, phases=[Phase.generate])
@given(data=st.data())
def test_any_array_in_hdf5_is_read_bit_for_bit_in_every_range(
    name: str, data: st.DataObject
) -> None:
    check_that_arrays_are_read(HDF5_FORMATS[name], data, arrays_max=len(KEYS))


def draw_flip(data: st.DataObject, masks: Mapping[Path, NDArray[np.bool_]]) -> Flip:
    """Draws a bit, those of descriptions as often as all others together.

    How many bytes and files there are may differ from run to run: tensorstore names files at
    random. So numbers are drawn that do not depend on it.

    Args:
      data: What draws.
      masks: Which bytes of each file describe arrays.
    """
    is_description = data.draw(st.booleans())
    files = [file for file, mask in masks.items() if (mask == is_description).any()]
    if not files:
        is_description = not is_description
        files = list(masks)
    file = files[data.draw(NUMBERS) % len(files)]
    candidates = np.flatnonzero(masks[file] == is_description)
    byte = int(candidates[data.draw(NUMBERS) % len(candidates)])
    return Flip(file, byte, data.draw(st.integers(0, 7)), is_description)


def check_that_a_shorter_file_is_noticed(
    kind: Format, data: st.DataObject, directory: Path, stored: Mapping[str, Values]
) -> None:
    """Cuts one of the files short, or removes it."""
    files = sorted(file for file in directory.rglob("*") if file.is_file())
    file = files[data.draw(NUMBERS) % len(files)]
    content = file.read_bytes()
    file.unlink()
    if content and data.draw(st.booleans()):
        file.write_bytes(content[: data.draw(NUMBERS) % len(content)])
    for key, values in read_unless_rejected(directory, stored):
        if kind.sizes_are_stated or values.shape == stored[key].shape:
            assert not difference(stored[key], values).any(), (file, key)


def check_that_damage_is_noticed(kind: Format, data: st.DataObject) -> None:
    # Of an array without values there is only a description.
    arrays = data.draw(checkpoints(kind._replace(extent_min=1), arrays_max=3))
    with TemporaryDirectory() as directory:
        stored = kind.write(Path(directory), arrays)
        files = sorted(file for file in Path(directory).rglob("*") if file.is_file())
        masks = {file: kind.descriptions(file) for file in files if file.stat().st_size}
        for _ in range(FLIPS):
            flip = draw_flip(data, masks)
            with flipped(flip):
                readings = read_unless_rejected(Path(directory), stored)
            if flip.is_description and not kind.descriptions_are_summed:
                continue  # it may describe other arrays now
            differences = [(key, difference(stored[key], values)) for key, values in readings]
            changed = {key: differing for key, differing in differences if differing.any()}
            assert len(changed) <= 1, (flip, changed)
            for key, differing in changed.items():
                # Files of a dump have keys of their own. None of them has a checksum or chunks.
                array = arrays.get(key, next(iter(arrays.values())))
                reach = kind.encodings[array.encoding]
                assert_within_reach(differing, reach, array.chunk, flip)
        check_that_a_shorter_file_is_noticed(kind, data, Path(directory), stored)


@pytest.mark.parametrize("name", FORMATS)
@settings(max_examples=MANY)
@given(data=st.data())
def test_damage_is_rejected_or_changes_at_most_what_no_checksum_covers(
    name: str, data: st.DataObject
) -> None:
    check_that_damage_is_noticed(FORMATS[name], data)


@pytest.mark.parametrize("name", ["weights.h5", "keras"])
@settings(max_examples=FEW, phases=[Phase.generate])
@given(data=st.data())
def test_damage_in_hdf5_is_rejected_or_changes_at_most_what_no_checksum_covers(
    name: str, data: st.DataObject
) -> None:
    check_that_damage_is_noticed(HDF5_FORMATS[name], data)
