"""Finds the inputs and outputs of a model's calls: by the model's own description of its inputs, by
examples, or by calling it until it misses no other input.
"""

from __future__ import annotations

import inspect
import re
import warnings
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from export.checkpoint.reader import Checkpoint
from export.errors import ExportError
from export.front_end.calls import Call
from export.front_end_choice import front_end_of
from export.graphs.loading import tf
from export.recipe.schema import ExportJob, InputSection
from export.tensorflow_models.graph.tower_results import Returned
from export.tensorflow_models.lookups.interception import early_lookups
from export.tensorflow_models.model.call_tracing import trace_call
from export.tensorflow_models.model.roots import build_root
from export.tensorflow_models.model.tracing import table_maker

ATTEMPTS_MAX = 64
"""The maximum number of times that a call is tried, each time with one input changed."""
_MISSING = re.compile(r"raised KeyError: ['\"](.+?)['\"]")
_TAKES = re.compile(r"input '(.+?)' is \w+ in the recipe, and the model takes (\w+)")
# A nested dict was taken for a tensor: the message has the key that was looked up in it.
_LEVEL = re.compile(r"valid indices.*?got '(.+?)'|string indices|only integers, slices")
_OTHER_TYPE = re.compile(
    r"that don't all match|does not match (expected )?type|expected to be a \w+ tensor but is"
)
"""Errors of TensorFlow's operations whose operands have different types."""
_DTYPES = {"bool", "int32", "int64", "float32", "string"}


@dataclass
class ObservedCall:
    """What was observed of a call.

    Attributes:
      path: The path of the function; "" is the model itself.
      inputs: The inputs by their names.
      arguments: The names of its arguments; None: it takes one dict.
      assumed: The names of the inputs whose dtype nothing states.
      outputs: The shape of each result without the batch, by its key or position; by None where the
        result is one tensor.
      queries: Whether a retrieval layer in it compares vectors of queries.
      problem: Why it could not be called; "": it was.
    """

    path: str = ""
    inputs: dict[str, InputSection] = field(default_factory=dict)
    arguments: tuple[str, ...] | None = None
    assumed: set[str] = field(default_factory=set)
    outputs: dict[str | int | None, tuple[int | None, ...]] = field(default_factory=dict)
    queries: bool = False
    problem: str = ""


def observe_calls(
    job: ExportJob, base: Path, checkpoint: Checkpoint, columns: Mapping[str, InputSection]
) -> list[ObservedCall]:
    """Returns the calls of a recipe's model.

    Args:
      job: A recipe without inputs and towers.
      base: Its folder.
      checkpoint: The open checkpoint.
      columns: The inputs that examples show; {}: there are no examples.

    Raises:
      ExportError: The model cannot be built.
    """
    front_end = front_end_of(job, base)
    job, _ = front_end.find_variables(job, checkpoint)
    is_jax = type(front_end).__name__ == "JaxFrontEnd"
    paths = [""]
    if is_jax:
        paths = _function_names(job, base)
    with warnings.catch_warnings():
        # Most calls are only tried; the export itself shows the warnings of the right ones.
        warnings.simplefilter("ignore")
        return [_observed(job, base, path, columns, is_jax) for path in paths]


def _function_names(job: ExportJob, base: Path) -> list[str]:
    # JAX is an optional dependency, so it is imported only for models that need it.
    from export.jax_models.functions import build_functions

    return list(build_functions(job, base).functions)


def _observed(
    job: ExportJob, base: Path, path: str, columns: Mapping[str, InputSection], is_jax: bool
) -> ObservedCall:
    call = ObservedCall(path)
    described: dict[str, InputSection] = {}
    parameters: tuple[str, ...] = ()
    if not is_jax:
        described, parameters = _described(job, base)
    # What the model states of its inputs comes before what examples show.
    call.inputs = described or dict(columns)
    # A call of one parameter may take a dict of inputs, so that is tried first.
    if not call.inputs and len(parameters) > 1:
        _take_arguments(call, parameters)
    for _ in range(ATTEMPTS_MAX):
        try:
            returned = _traced(job, base, call, is_jax)
        except ExportError as problem:
            call.problem = str(problem)
            if not call.inputs and parameters and not _MISSING.search(call.problem):
                _take_arguments(call, parameters)
            elif not _corrected(job, base, call, is_jax):
                return call
        else:
            call.problem = ""
            call.outputs = dict(_outputs(returned))
            call.queries = bool(returned.queries)
            return call
    return call


def _take_arguments(call: ObservedCall, parameters: Sequence[str]) -> None:
    """Gives a call one input for each of its parameters."""
    call.arguments = tuple(parameters)
    for name in parameters:
        _add(call, name)


def _described(job: ExportJob, base: Path) -> tuple[dict[str, InputSection], tuple[str, ...]]:
    """Returns the inputs of a functional model of Keras, {} of any other; and the names of the
    parameters that its call needs.
    """
    with early_lookups(table_maker({})):
        root = build_root(job, base)
    if not getattr(root, "output_names", None):
        return {}, _parameters(root)
    return _inputs_of(root), ()


def _parameters(root: Any) -> tuple[str, ...]:
    try:
        parameters = inspect.signature(getattr(root, "call", root)).parameters
    except (TypeError, ValueError):
        return ()
    return tuple(
        name
        for name, parameter in parameters.items()
        if parameter.default is parameter.empty
        and parameter.kind is parameter.POSITIONAL_OR_KEYWORD
        and name != "training"
    )


def _inputs_of(root: Any) -> dict[str, InputSection]:
    """Returns the inputs of a functional model; {} if one is of a type that no request has."""
    inputs = {}
    for tensor in root.inputs:
        dtype = getattr(tensor.dtype, "name", tensor.dtype)
        sizes = tuple(tensor.shape)[1:]
        if dtype not in _DTYPES:
            return {}
        if getattr(tensor, "ragged", False):
            part = InputSection(dtype=dtype, kind="ragged")
        elif None in sizes:
            part = InputSection(dtype=dtype)
        else:
            part = InputSection(dtype=dtype, shape=sizes)
        inputs[str(tensor.name)] = part
    return inputs


def _traced(job: ExportJob, base: Path, call: ObservedCall, is_jax: bool) -> Returned:
    """Traces the call of a model that is built anew: a call that fails may leave layers built."""
    with early_lookups(table_maker({})):
        if is_jax:
            root = _jax_root(job, base)
        else:
            root = build_root(job, base)
    function = Call(call.path, tuple(call.inputs), call.arguments)
    return trace_call(root, function, call.inputs, table_maker({})).returned


def _jax_root(job: ExportJob, base: Path) -> Any:
    from export.jax_models.functions import Calls, build_functions

    return Calls(build_functions(job, base))


def _outputs(returned: Returned) -> Iterator[tuple[str | int | None, tuple[int | None, ...]]]:
    """Yields the results that are dense floats."""
    results: Iterable[tuple[Any, Any]]
    if isinstance(returned.value, Mapping):
        results = returned.value.items()
    elif returned.is_sequence:
        results = zip(returned.names or range(len(returned.value)), returned.value, strict=False)
    else:
        results = [(None, returned.value)]
    for key, tensor in results:
        # Integers and texts are no outputs that a tower could have.
        if isinstance(tensor, tf.Tensor) and tensor.dtype.is_floating and tensor.shape.rank:
            yield key, tuple(tensor.shape.as_list()[1:])


def _corrected(job: ExportJob, base: Path, call: ObservedCall, is_jax: bool) -> bool:
    """Changes the inputs of a call by its last error; returns whether anything was changed."""
    missing = _MISSING.search(call.problem)
    if missing is not None:
        return _added(job, base, call, missing[1], is_jax)
    takes = _TAKES.search(call.problem)
    # What examples or the model itself state is not changed.
    if takes is not None and takes[1] in call.assumed and takes[2] in _DTYPES:
        call.inputs[takes[1]] = InputSection(dtype=takes[2])
        call.assumed.discard(takes[1])
        return True
    # The input was a dict of inputs: the key that the call looked up is one of them.
    level = _LEVEL.search(call.problem)
    if level is not None and level[1] and call.assumed:
        outer = next(reversed(call.inputs))
        del call.inputs[outer]
        call.assumed.discard(outer)
        return _add(call, f"{outer}.{level[1]}")
    if "arguments = [" in call.problem and len(call.inputs) == 1 and call.arguments is None:
        call.arguments = tuple(call.inputs)
        return True
    if _OTHER_TYPE.search(call.problem):
        return _with_numbers(job, base, call, is_jax)
    return False


def _added(job: ExportJob, base: Path, call: ObservedCall, name: str, is_jax: bool) -> bool:
    """Adds an input that the call misses: at the level where it is no longer missed."""
    # An error does not have the level of the key: nested dicts are tried before the outer one.
    nested = [input_name for input_name in call.inputs if "." in input_name]
    levels = dict.fromkeys(input_name.rpartition(".")[0] for input_name in nested)
    for candidate in [*(f"{level}.{name}" for level in levels), name]:
        if candidate in call.inputs or not _add(call, candidate):
            continue
        try:
            _traced(job, base, call, is_jax)
        except ExportError as problem:
            missing = _MISSING.search(str(problem))
            # Any other error shows that the key was found.
            if missing is not None and missing[1] == name:
                del call.inputs[candidate]
                call.assumed.discard(candidate)
                continue
        return True
    return False


def _add(call: ObservedCall, name: str) -> bool:
    call.inputs[name] = InputSection(dtype="int64")
    call.assumed.add(name)
    return True


def _with_numbers(job: ExportJob, base: Path, call: ObservedCall, is_jax: bool) -> bool:
    """Assumes that one more input is a number: the first one that changes the error. Returns
    whether there is one.
    """
    for name in sorted(call.assumed):
        if call.inputs[name].dtype != "int64":
            continue
        call.inputs[name] = InputSection(dtype="float32")
        try:
            _traced(job, base, call, is_jax)
        except ExportError as problem:
            # The same error, or one that names an input of another dtype: this one is no number.
            if str(problem) == call.problem or _TAKES.search(str(problem)):
                call.inputs[name] = InputSection(dtype="int64")
                continue
        return True
    return False
