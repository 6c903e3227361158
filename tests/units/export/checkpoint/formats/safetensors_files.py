"""Files of safetensors, written by the page that describes the format."""

from __future__ import annotations

import json
import struct
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from numpy.typing import NDArray

DTYPES = {
    "float64": "F64",
    "float32": "F32",
    "float16": "F16",
    "bfloat16": "BF16",
    "int64": "I64",
    "int32": "I32",
    "int16": "I16",
    "int8": "I8",
    "uint64": "U64",
    "uint32": "U32",
    "uint16": "U16",
    "uint8": "U8",
    "bool": "BOOL",
}


def write_header(path: Path, header: Mapping[str, Any] | bytes, data: bytes = b"") -> Path:
    """Writes a file of any header, as JSON or as it is."""
    text = header if isinstance(header, bytes) else json.dumps(header).encode()
    path.write_bytes(struct.pack("<Q", len(text)) + text + data)
    return path


def write_safetensors(path: Path, tensors: Mapping[str, NDArray[Any]]) -> Path:
    """Writes tensors one behind the other."""
    header: dict[str, Any] = {"__metadata__": {"format": "pt"}}
    data = b""
    for name, values in tensors.items():
        position = [len(data), len(data) + values.nbytes]
        dtype = DTYPES[values.dtype.name]
        header[name] = {"dtype": dtype, "shape": values.shape, "data_offsets": position}
        data += values.tobytes()
    return write_header(path, header, data)
