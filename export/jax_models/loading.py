"""Imports JAX lazily: only models in JAX need it."""

from __future__ import annotations

import os
import sys
from importlib.metadata import version
from typing import Any

from export.errors import NotConvertible
from export.graphs.loading import describe_tested, is_tested, tested_range


def prefer_cpus() -> None:
    """Makes JAX run on CPUs, as towers do, unless JAX is loaded already."""
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
            f"models in JAX need JAX: {problem}; run `pip install 'rowcast[export,jax]'`"
        ) from problem
    check_release(jax.__version__)
    return jax


def check_release(jax_version: str) -> None:
    """Checks that a version of JAX belongs to a supported release. Any other release may rename
    primitives, which would then be rejected one by one.

    Raises:
      NotConvertible: The version belongs to another release.
    """
    if not is_tested("jax", jax_version):
        raise NotConvertible(f"found jax {jax_version}; {supported_releases()}")


def supported_releases() -> str:
    """Returns the sentence that names the supported releases of JAX, and how to get the newest."""
    return (
        f"rowcast-export {version('rowcast')} supports jax {describe_tested('jax')}: install "
        f"{tested_range('jax')}"
    )


class _Jax:
    """The module `jax`, imported on first use."""

    def __getattr__(self, name: str) -> Any:
        return getattr(load_jax(), name)


jax: Any = _Jax()
