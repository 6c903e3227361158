"""Lookups that a specification describes, so that no code of the model is intercepted: a front end
makes them itself, while TensorFlow traces.
"""

from __future__ import annotations

from typing import Any

from export.graphs.hooks import Hooks
from export.partition.lookups.records import ActivationOf, TracedLookup


class _Specified:
    """Holds what replaces such lookups inside a `lookups_intercepted` block."""

    # In a class, since `Hooks` replaces attributes, and restores them.
    activation_of: ActivationOf | None = None


def intercept_specified(hooks: Hooks, activation_of: ActivationOf) -> None:
    """Lets `look_up` return what `activation_of` does."""
    watched = staticmethod(hooks.watched(activation_of))
    hooks.set_attribute(_Specified, "activation_of", watched)


def look_up(lookup: TracedLookup) -> Any:
    """Returns the activation of a lookup, whose table is a placeholder variable."""
    if _Specified.activation_of is None:
        raise RuntimeError("specified lookups exist only while a model is traced")
    return _Specified.activation_of(lookup)
