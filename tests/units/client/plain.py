"""Requests and responses as nested plain values, so that they can be compared."""

from __future__ import annotations

from typing import Any

import numpy as np


def plain(value: Any) -> Any:
    """Returns arrays as lists, and dataclasses as dicts."""
    if isinstance(value, np.ndarray):
        return value.tolist()
    if isinstance(value, dict):
        return {name: plain(element) for name, element in value.items()}
    if isinstance(value, (list, tuple)):
        return [plain(element) for element in value]
    if hasattr(value, "__dataclass_fields__"):
        return {name: plain(getattr(value, name)) for name in value.__dataclass_fields__}
    return value
