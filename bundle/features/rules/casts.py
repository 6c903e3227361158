"""Ids that are cast to integers before their rule: numbers of wide inputs, and integers of less bits."""

from __future__ import annotations

import numpy as np

from bundle.features.rules.ids import Rule
from bundle.format.manifest import Cast
from bundle.tables.id_values import Rows, Values, integers, numbers

_ROUNDED = {"toward_zero": np.trunc, "down": np.floor, "up": np.ceil, "half_even": np.rint}


class CastFirst:
    """What another rule makes of ids that are cast to integers first."""

    def __init__(self, name: str, page: Cast, rule: Rule) -> None:
        """Begins one: input `name` is cast as `page` says, and `rule` is given the integers."""
        self._name, self._rule, self._real, self._to = name, rule, page.of == "float32", np.dtype(page.to)
        self._rounded = _ROUNDED[page.rounding]

    def resolve(self, values: Values) -> Rows:
        """Resolves numbers, or integers.

        Source: TensorFlow 2.20, core/kernels/cast_op_impl.h: static_cast, which on x86-64 gives the smallest integer of
        a number beyond the integers (the rule).
        """
        if not self._real:
            return self._rule.resolve(integers(self._name, values).astype(self._to).astype(np.int64))
        found, limits = self._rounded(numbers(self._name, values)), np.iinfo(self._to)
        # Beyond the largest integer there is no float32 below the next power of two.
        beyond = (found < np.float32(limits.min)) | (found >= np.float32(limits.max))
        whole = np.where(beyond, np.float32(0), found).astype(np.int64)
        return self._rule.resolve(np.where(beyond, limits.min, whole))
