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


def default_engine() -> Engine:
    """Returns the engine of indexes for which none is named: ScaNN where it is installed."""
    if is_installed("scann"):
        return "scann"
    return "faiss"


def open_engine(engine: Engine) -> IndexEngine:
    """Returns an engine, and imports its library.

    Raises:
      LibraryMissing: The library is not installed.
    """
    if not is_installed(engine):
        raise LibraryMissing(
            f"an index has engine {engine!r}, and the package {engine} is not installed here; "
            "install it, or export the model with another engine of the index"
        )
    if engine == "faiss":
        from runtime.faiss_build import FaissEngine

        return FaissEngine()
    from runtime.scann_build import ScannEngine

    return ScannEngine()
