"""Calls what needs TensorFlow in a process of its own, so that the caller's stays without it.

Each is forked from one process that has imported TensorFlow, which takes seconds, and used nothing of it.
"""

from __future__ import annotations

import multiprocessing
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from typing import ParamSpec, TypeVar

import pytest

Given = ParamSpec("Given")
Result = TypeVar("Result")
ENVIRONMENT = {
    "TF_USE_LEGACY_KERAS": "1",
    "TF_CPP_MIN_LOG_LEVEL": "3",
    "CUDA_VISIBLE_DEVICES": "-1",
}
"""As `load_tensorflow` has it: proofs of an export in the caller's process are forked from the same one."""


def with_tensorflow(
    function: Callable[Given, Result], *given: Given.args, **named: Given.kwargs
) -> Result:
    """Returns what a function of a module returns; it has to be picklable, and so is what it is given."""
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["tensorflow"])
    with pytest.MonkeyPatch.context() as environment, ProcessPoolExecutor(1, context) as process:
        for name, value in ENVIRONMENT.items():
            environment.setenv(name, value)
        return process.submit(function, *given, **named).result()
