"""TFRecord files of Examples, written by the rule of the format: what the reader is held to without TensorFlow."""

from __future__ import annotations

import gzip
import struct
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import google_crc32c

from export.corpora.tfrecords import example_type


def record(data: bytes) -> bytes:
    """Frames the bytes of a record."""
    length = struct.pack("<Q", len(data))
    return length + masked(length) + data + masked(data)


def example(features: Mapping[str, Any]) -> bytes:
    """Serialises lists of integers, floats, or strings and bytes."""
    page = example_type()()
    for name, values in features.items():
        feature = page.features.feature[name]
        if not values:
            continue
        if isinstance(values[0], int):
            feature.int64_list.value.extend(values)
        elif isinstance(values[0], float):
            feature.float_list.value.extend(values)
        else:
            feature.bytes_list.value.extend(each.encode() if isinstance(each, str) else each for each in values)
    data: bytes = page.SerializeToString(deterministic=True)
    return data


def write_examples(path: Path, examples: Iterable[Mapping[str, Any]], zipped: bool = False) -> Path:
    """Writes a file."""
    path.parent.mkdir(parents=True, exist_ok=True)
    data = b"".join(record(example(each)) for each in examples)
    path.write_bytes(gzip.compress(data) if zipped else data)
    return path


def masked(data: bytes) -> bytes:
    """Returns the masked crc32c of some bytes, as it is stored."""
    crc = google_crc32c.value(data)
    return struct.pack("<I", ((crc >> 15 | crc << 17) + 0xA282EAD8) & 0xFFFFFFFF)
