"""What a model's code raised, in one line: Keras, AutoGraph and TensorFlow wrap the original in
call stacks, values and codes of a terminal; and what to do about it.
"""

from __future__ import annotations

import re
import traceback
from collections.abc import Callable
from typing import Any, Literal, TypeVar

from bundle.errors import BundleError
from export.errors import ExportError, NotConvertible
from export.user_lines import (
    at_line,
    causes,
    is_model_file,
    is_own_file,
    line_of_exception,
)

Result = TypeVar("Result")

_WRAPPED = re.compile(
    r"Exception encountered when calling [^\n]*\n\s*+(?:\x1b\[1m)?(?!in user "
    r"code|\w*(?:Error|Exception): )(.+?)"
    r"(?:\x1b\[0m)?\n\s*\n",
    re.DOTALL,
)
"""The error that a layer raised, inside the message of Keras 2 or 3."""
_RAISED = re.compile(r"^\s*(\w*(?:Error|Exception): .*?)\s*$", re.MULTILINE)
_KERNEL = re.compile(r"\{\{function_node [^}]*\}\} ?|\[Op:\w+\][^\n]*")
"""Where TensorFlow says in its own terms which kernel failed."""
_NODE = re.compile(r"\{\{node ([^}]*)\}\}")
"""An operation of a graph."""
_TERMINAL = re.compile(r"\x1b\[[0-9;]*m")
_RAGGED = re.compile(r"valid RaggedTensor|row_splits|row_lengths|value_rowids|nested_splits")
_OF_VALUES = "tensorflow.python.framework.errors_impl"
"""The module of the errors that TensorFlow's operations raise while they compute."""
_TENSORFLOW = "/tensorflow/python/"
"""What the paths of TensorFlow's modules have in common."""
_FAILURE_MAX = 200
"""The maximum number of characters of what a step of an export met."""
_MESSAGE_MAX = 300
"""The maximum number of characters of a message of the model's code."""


def one_line(problem: BaseException) -> str:
    """Returns the class and the message of what was raised first."""
    # A KeyError shows its message as Python writes a text, with \\n for the ends of lines.
    is_key = isinstance(problem, KeyError) and len(problem.args) == 1
    message = str(problem)
    if is_key:
        message = str(problem.args[0])
    text = _NODE.sub(r"\1", _KERNEL.sub("", message))
    # The last one is the innermost: each layer wraps the error of the one it calls.
    wrapped = _WRAPPED.findall(text)
    if is_key and wrapped:
        return f"KeyError: {_plain(wrapped[-1])!r}"
    if is_key and "\n" not in message:
        return f"KeyError: {_plain(message)!r}"
    if wrapped:
        return f"{type(problem).__name__}: {_plain(wrapped[-1])}"
    raised = _RAISED.findall(text)
    if raised:
        return _plain(raised[-1])
    return f"{type(problem).__name__}: {_plain(text)}"


def call_model(function: Callable[..., Result], *arguments: Any, **options: Any) -> Result:
    """Calls code of a model, also of one that consists of libraries alone: what it raises is an
    error of the model, even if no line of the user's is among its frames.
    """
    return function(*arguments, **options)


def is_own(problem: BaseException) -> bool:
    """Returns whether the exporter's own code raised an error: a bug, which neither the model nor
    its examples have caused.

    It did if its own frame is the last one, or if it called a library outside of any call of the
    model. Errors that operations raise because of values are the model's.
    """
    # Rejections say who is at fault, and the exporter's own files have no errors of syntax.
    is_rejection = isinstance(problem, BundleError | ExportError)
    if (
        _is_of_values(problem)
        or is_rejection
        or isinstance(problem, FloatingPointError | SyntaxError)
    ):
        return False
    # Keras and AutoGraph raise errors again, where the frames of the model are those of a cause.
    kinds_of_causes = [_kinds_of_frames(cause) for cause in causes(problem)]
    return not any(map(_leads_to_model, kinds_of_causes)) and any(kinds_of_causes)


def _is_of_values(problem: BaseException) -> bool:
    """Returns whether an operation of TensorFlow raised an error while it computed."""
    if type(problem).__module__ == _OF_VALUES:
        return True
    # A message that repeats half a character of a text is no UTF-8: TensorFlow fails to raise it.
    frames = traceback.extract_tb(problem.__traceback__)
    is_unreadable = isinstance(problem, UnicodeDecodeError)
    return is_unreadable and bool(frames) and _TENSORFLOW in frames[-1].filename


_Kind = Literal["own", "model", "library"]


def _kinds_of_frames(problem: BaseException) -> list[_Kind]:
    """Returns whose code the frames of an error are of, the last one last."""
    kinds: list[_Kind] = []
    for frame in traceback.extract_tb(problem.__traceback__):
        is_call_of_model = frame.filename == __file__ and frame.name == call_model.__name__
        # A name that code lacks is reported in Python's place.
        is_lookup_of_name = frame.name in ("__getattr__", "__missing__")
        if is_call_of_model or is_lookup_of_name or is_model_file(frame.filename):
            kinds.append("model")
        elif is_own_file(frame.filename):
            kinds.append("own")
        else:
            kinds.append("library")
    return kinds


def _leads_to_model(kinds: list[_Kind]) -> bool:
    """Returns whether an error with such frames is one of the model."""
    if not kinds or kinds[-1] == "own":
        return False
    if kinds[-1] == "library":
        # What a library rejects within a call of the model, hooks of the exporter's may have passed
        # on to it.
        return "model" in kinds
    return True


def failure(problem: BaseException, of_model: str) -> str:
    """Returns why a step of an export failed on a part of the model, with what was raised.

    Args:
      problem: The exception.
      of_model: The reason if the model is at fault.
    """
    reason = of_model
    if is_own(problem):
        reason = "the exporter fails on it, which is a bug to report"
    # TensorFlow gives the reason last, after the frames of its graph.
    text = str(problem).rpartition("\n\n")[2].partition("\n\t [[")[0]
    return f"{reason}: {_plain(text)[:_FAILURE_MAX]}"


def raised_on_examples(call: str, problem: BaseException, *, are_synthetic: bool) -> NotConvertible:
    """Returns the rejection of a model whose code raises when it is run on examples.

    Args:
      call: The call, as messages name it.
      problem: The exception that it raised.
      are_synthetic: Whether the examples are synthetic, for want of `verify.examples`.
    """
    text = one_line(problem)
    if len(text) > _MESSAGE_MAX:
        text = f"{text[:_MESSAGE_MAX]}..."
    return NotConvertible(
        f"{call} raised an error on the examples{at_line(line_of_exception(problem))}: {text}; "
        f"{_remedy(text, are_synthetic=are_synthetic)}"
    )


def _plain(text: str) -> str:
    return " ".join(_TERMINAL.sub("", text).split())


def _remedy(text: str, *, are_synthetic: bool) -> str:
    if _RAGGED.search(text):
        return (
            "the first axis of every input is the batch, so values and offsets of a ragged tensor "
            'are no two inputs: declare one input with kind = "ragged", and let the call take a '
            "tf.RaggedTensor"
        )
    if are_synthetic:
        return (
            "the examples are made up: if the model does not take every value, write some that "
            "callers would send, and name their file as verify.examples"
        )
    return "correct verify.examples, or the model: a request with such values would fail, too"
