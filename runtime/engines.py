"""The choice of the library that an index is built and searched with. Only what is chosen is
imported.
"""

from __future__ import annotations

from importlib.util import find_spec

from bundle.format.indexes import Engine
from runtime.candidate_index import IndexEngine
from runtime.errors import LibraryMissing


def is_installed(engine: Engine) -> bool:
    """Returns whether the library of an engine is installed."""
    return find_spec(engine) is not None


def open_engine(engine: Engine) -> IndexEngine:
    """Returns an engine, and imports its library.

    Raises:
      LibraryMissing: The library is not installed.
    """
    if not is_installed(engine):
        raise LibraryMissing(
            f"indexes of engine {engine!r} need the package {engine}, which is not installed; "
            "install it, or export the model with another engine of the index"
        )
    from runtime.scann_build import ScannEngine

    return ScannEngine()
