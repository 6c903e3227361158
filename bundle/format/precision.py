"""The precisions at which towers run."""

from __future__ import annotations

from typing import Literal

Precision = Literal["f32", "int8", "bf16"]
