"""What is computed has to be finite: where it is not, whether the numbers that a caller sent may be to blame."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from bundle.features import Column
from bundle.manifest import DenseFeature, Manifest
from service.engine.requests import Request


class NotFinite(ArithmeticError):
    """What was computed holds NaN or an infinity; says what it is."""


def check_finite(array: NDArray[Any], what: str) -> None:
    """Refuses to answer with NaN or an infinity.

    Raises:
      NotFinite: the array holds one.
    """
    finite = np.isfinite(array)
    if np.count_nonzero(finite) < finite.size:  # counting is much cheaper than all()
        raise NotFinite(what)


def sends_numbers(manifest: Manifest, request: Request) -> bool:
    """Tells whether a request holds numbers that are computed with: vectors, weights or values of dense features."""
    if getattr(request, "vectors", None) is not None:
        return True
    sent = (getattr(request, name, None) for name in ("features", "context", "candidates"))
    return any(_numbers(manifest, columns) for columns in sent if isinstance(columns, Mapping))


def _numbers(manifest: Manifest, columns: Mapping[str, Column]) -> bool:
    return any(
        column.weights is not None
        or any(isinstance(manifest.features[reader], DenseFeature) for reader in manifest.inputs.get(name, ()))
        for name, column in columns.items()
    )
