"""Calls functions that need TensorFlow in other processes, so that the caller's stays without it.

Each process is forked from one that has imported TensorFlow, which takes seconds, and has not used
it.
"""

from __future__ import annotations

import multiprocessing
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from typing import ParamSpec, TypeVar

import pytest

Parameters = ParamSpec("Parameters")
Result = TypeVar("Result")
ENVIRONMENT = {
    "TF_USE_LEGACY_KERAS": "1",
    "TF_CPP_MIN_LOG_LEVEL": "3",
    "CUDA_VISIBLE_DEVICES": "-1",
}
"""The same as `load_tensorflow` sets: when the caller runs an export, its checks of SavedModels are
forked from the same process.
"""


def with_tensorflow(
    function: Callable[Parameters, Result], *args: Parameters.args, **kwargs: Parameters.kwargs
) -> Result:
    """Calls a function of a module. Its arguments and its return value must be picklable."""
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["tensorflow"])
    with pytest.MonkeyPatch.context() as environment, ProcessPoolExecutor(1, context) as process:
        for name, value in ENVIRONMENT.items():
            environment.setenv(name, value)
        return process.submit(function, *args, **kwargs).result()
