"""Lookups that a specification describes, so that no code of the model is intercepted: a front end
makes them itself, while TensorFlow traces.
"""

from __future__ import annotations

from typing import Any

from export.tensorflow_models.frameworks.hooks import Hooks
from export.tensorflow_models.lookups.records import Answer, Lookup


class _Specified:
    """Holds what replaces such lookups inside a `lookups_intercepted` block."""

    answer: Answer | None = None


def intercept_specified(hooks: Hooks, answer: Answer) -> None:
    """Lets `look_up` return what `answer` does."""
    hooks.set_attribute(_Specified, "answer", staticmethod(hooks.watched(answer)))


def look_up(lookup: Lookup) -> Any:
    """Returns the activation of a lookup, whose table is a placeholder variable."""
    if _Specified.answer is None:
        raise RuntimeError("specified lookups exist only while a model is traced")
    return _Specified.answer(lookup)
