"""TFRecord files of Examples, written by the rule of the format: what the reader is held to without
TensorFlow.
"""

from __future__ import annotations

import gzip
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from export.checkpoint.formats.protos import message
from tests.bundles.tfrecords import record


def example(features: Mapping[str, Any]) -> bytes:
    """Serializes lists of integers, floats, or strings and bytes."""
    entries = []
    for name, values in features.items():
        if not values:
            lists = {}
        elif isinstance(values[0], int):
            lists = {"int64_list": message("Int64List", value=values)}
        elif isinstance(values[0], float):
            lists = {"float_list": message("FloatList", value=values)}
        else:
            texts = [value.encode() if isinstance(value, str) else value for value in values]
            lists = {"bytes_list": message("BytesList", value=texts)}
        entries.append(message("FeatureEntry", key=name, value=message("Feature", **lists)))
    data: bytes = message(
        "Example", features=message("Features", feature=entries)
    ).SerializeToString()
    return data


def write_examples(
    path: Path, examples: Iterable[Mapping[str, Any] | bytes], zipped: bool = False
) -> Path:
    """Writes a file."""
    path.parent.mkdir(parents=True, exist_ok=True)
    data = b"".join(record(each if isinstance(each, bytes) else example(each)) for each in examples)
    path.write_bytes(gzip.compress(data) if zipped else data)
    return path
