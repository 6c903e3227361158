"""TFRecord files, written by the rule of the format or as TensorFlow does."""

from __future__ import annotations

import struct
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import google_crc32c
import numpy as np

from bundle.format.checksums import mask
from export.graphs.loading import load_tensorflow


def record(data: bytes) -> bytes:
    """Frames the bytes of a record."""
    length = struct.pack("<Q", len(data))
    return length + masked(length) + data + masked(data)


def masked(data: bytes) -> bytes:
    """Returns the masked crc32c of some bytes, as it is stored."""
    return struct.pack("<I", mask(google_crc32c.value(data)))


def write_records(path: Path, records: Iterable[bytes]) -> Path:
    """Writes a file, and its directory."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(b"".join(map(record, records)))
    return path


def example(values: Mapping[str, Any], messages: Any = None) -> Any:
    """Returns the Example of texts, floats and integers, alone or in lists; a message of TensorFlow
    unless a module has others of the same names.
    """
    train = messages or load_tensorflow().train

    def feature(part: Any) -> Any:
        flat = np.ravel(np.array(part)).tolist()
        if flat and isinstance(flat[0], str | bytes):
            texts = [text.encode() if isinstance(text, str) else text for text in flat]
            return train.Feature(bytes_list=train.BytesList(value=texts))
        if flat and isinstance(flat[0], float):
            return train.Feature(float_list=train.FloatList(value=flat))
        return train.Feature(int64_list=train.Int64List(value=map(int, flat)))

    features = {name: feature(part) for name, part in values.items()}
    return train.Example(features=train.Features(feature=features))


def write_as_tensorflow(path: Path, records: Iterable[bytes]) -> Path:
    """Writes a file, compressed if its name ends so."""
    io = load_tensorflow().io
    options = io.TFRecordOptions("GZIP" if path.suffix == ".gz" else "")
    with io.TFRecordWriter(str(path), options) as writer:
        for data in records:
            writer.write(data)
    return path
