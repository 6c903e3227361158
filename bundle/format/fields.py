"""Kinds of fields of the manifest: names, paths, checksums and integers, each bounded before
anything is allocated.
"""

from __future__ import annotations

from functools import lru_cache
from itertools import pairwise
from typing import Annotated, Any

import numpy as np
import orjson
from pydantic import AfterValidator, BaseModel, ConfigDict, Field

from bundle.errors import FormatError, UnknownFormat, UnsafePath
from bundle.format import paths


@lru_cache(maxsize=4096)  # a linked file has thousands of segments
def _safe_path(path: str) -> str:
    try:
        return paths.checked(path)
    except UnsafePath as problem:
        raise ValueError(str(problem)) from problem


def _name(text: str) -> str:
    if not paths.is_name(text):
        raise ValueError(
            f"{text!r} is no name: letters, digits, '_', '.', '-', at most 128, beginning with a "
            "letter or digit"
        )
    return text


def _ascending(boundaries: tuple[float, ...]) -> tuple[float, ...]:
    # Between the limits of float32, which excludes infinities and NaN.
    ends = (-_FLOAT32_MAX, *boundaries, _FLOAT32_MAX)
    if not all(low <= high for low, high in pairwise(ends)):
        raise ValueError("boundaries must be finite in float32 and ascend")
    return boundaries


_FLOAT32_MAX = 3.4028234663852886e38

Path = Annotated[str, AfterValidator(_safe_path)]
Name = Annotated[str, AfterValidator(_name)]
Crc32c = Annotated[int, Field(ge=0, lt=1 << 32)]
Count = Annotated[int, Field(ge=0, lt=1 << 62, strict=True)]
"""An integer that leaves room for sums of a few in an int64."""
Positive = Annotated[int, Field(ge=1, lt=1 << 62, strict=True)]
Int64 = Annotated[int, Field(ge=-(1 << 63), lt=1 << 63, strict=True)]
"""Any integer that is computed with, and never allocated."""
Length = Annotated[int, Field(ge=1, le=1 << 16, strict=True)]
"""The length of a sequence or of one axis of a dense feature: a request allocates it for each
example.
"""
Cost = Annotated[float, Field(ge=0, allow_inf_nan=False)]
"""A measured ratio of times."""
Boundaries = Annotated[tuple[float, ...], AfterValidator(_ascending)]


def array_dtype(dtype: str) -> np.dtype[Any]:
    """Returns the dtype of arrays of what a manifest calls `dtype`: a `string` is an
    object, a str.
    """
    if dtype == "string":
        return np.dtype(object)
    return np.dtype(dtype)


class StrictModel(BaseModel):
    """Frozen; unknown fields are rejected: the parts of the manifest, and the records that the
    exporter keeps.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")


def read_json(data: bytes, file: str, version: int) -> dict[str, Any]:
    """Reads a JSON object of one version of its format.

    Args:
      data: The content of the file.
      file: Its name, for messages.
      version: The `format_version` that it must have.

    Raises:
      UnknownFormat: It has another version.
      FormatError: It is no JSON object.
    """
    try:
        content = orjson.loads(data)
    except orjson.JSONDecodeError as problem:
        raise FormatError(f"{file} is no JSON: {problem}") from problem
    if not isinstance(content, dict):
        raise FormatError(f"{file} is no JSON object")
    actual = content.get("format_version")
    # True and 1.0 equal 1.
    if type(actual) is not int or actual != version:
        raise UnknownFormat(
            f"{file}: format_version {actual!r} is not known here (this reader knows {version}); "
            "use a product version that reads it, or publish the bundle again"
        )
    return content
