"""Imports JAX lazily: only models that are written in it need it."""

from __future__ import annotations

import os
import sys
from importlib.metadata import version
from typing import Any

from export.errors import NotConvertible

SUPPORTED = "0.10"
"""The release of JAX whose primitives are known; others rename some, so they are rejected."""


def prefer_cpus() -> None:
    """Makes JAX run on CPUs, as the towers and what they are compared with do, unless it is loaded
    already.
    """
    if "jax" not in sys.modules:
        os.environ.setdefault("JAX_PLATFORMS", "cpu")


def load_jax() -> Any:
    """Returns the module `jax`, on CPUs only.

    Raises:
      NotConvertible: JAX is not installed, or its release is not supported.
    """
    prefer_cpus()
    try:
        import jax
    except ImportError as problem:
        raise NotConvertible(
            f"models in JAX need JAX: {problem}; in a checkout of rowcast, run `pip install "
            "'.[export,jax]'`"
        ) from problem
    check_release(jax.__version__)
    return jax


def check_release(found: str) -> None:
    """Checks a version of JAX.

    Raises:
      NotConvertible: it is of another release than the supported one.
    """
    if not found.startswith(f"{SUPPORTED}."):
        raise NotConvertible(
            f"rowcast-export {version('rowcast')} supports jax {SUPPORTED}; found {found}: "
            f"install 'jax~={SUPPORTED}.0'"
        )


class _Jax:
    """The module `jax`, imported on first use."""

    def __getattr__(self, name: str) -> Any:
        return getattr(load_jax(), name)


jax: Any = _Jax()
