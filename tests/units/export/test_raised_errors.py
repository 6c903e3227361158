"""Whose error ends an export: one of the model's code, or of the exporter's own."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from export.errors import NotConvertible
from export.graphs.loading import load_tensorflow
from export.raised_errors import call_model, failure, is_own
from export.report_text import size_text


def of_the_users_line() -> Any:
    sizes: dict[str, int] = {}
    return sizes["dimension"]


def of_a_library_that_a_model_calls() -> Any:
    return np.reshape(np.ones(3), (2,))


def of_an_operation() -> Any:
    tf = load_tensorflow()
    return call_model(tf.gather, tf.ones([3]), tf.constant(7))


def raised_again() -> Any:
    """As Keras does it, with the frames of the first error alone."""
    try:
        call_model(of_the_users_line)
    except KeyError as problem:
        raise RuntimeError("in a layer") from problem


def of_a_rejection() -> Any:
    raise NotConvertible("the process in which Keras runs on JAX ended")


OF_THE_MODEL: dict[str, Callable[[], Any]] = {
    "a line of the user's": of_the_users_line,
    "a library that the user calls": of_a_library_that_a_model_calls,
    "a model of a library alone": lambda: call_model(np.reshape, np.ones(3), (2,)),
    "an operation": of_an_operation,
    "raised again": raised_again,
    "a rejection": of_a_rejection,
}


def raised(function: Callable[[], Any]) -> Exception:
    with pytest.raises(Exception) as failure:  # noqa: PT011 - of any type
        function()
    return failure.value


@pytest.mark.parametrize("function", OF_THE_MODEL.values(), ids=OF_THE_MODEL)
def test_error_of_a_model_is_none_of_the_exporter(function: Callable[[], Any]) -> None:
    assert not is_own(raised(function))


def test_error_of_the_exporter_is_its_own_also_where_the_model_calls_it() -> None:
    # What the exporter puts in the place of a library's function runs within the model's code.
    problem = raised(lambda: call_model(size_text, "many"))
    assert is_own(problem)
    assert failure(problem, "TensorFlow rejects it").startswith("the exporter fails on it")


def test_failure_on_a_model_names_the_reason_and_what_was_raised() -> None:
    problem = raised(of_the_users_line)
    assert failure(problem, "TensorFlow rejects it") == "TensorFlow rejects it: 'dimension'"


def test_operation_whose_message_is_no_text_rejects_a_value() -> None:
    tf = load_tensorflow()
    problem = raised(lambda: tf.strings.to_number(tf.constant([b"\x9f"])))
    assert isinstance(problem, UnicodeDecodeError)
    # A graph of a model runs without any line of the user's.
    frames = problem.__traceback__
    while frames is not None and frames.tb_frame.f_code.co_filename == __file__:
        frames = frames.tb_next
    assert not is_own(problem.with_traceback(frames))
