"""Finds the inputs and outputs of a model's calls: by the model's own description of its inputs, by
examples, and by trying a call until it runs.
"""

from __future__ import annotations

import re
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from export.checkpoint.reader import Checkpoint
from export.drafts.example_columns import ColumnInput
from export.errors import ExportError
from export.front_end.calls import Call
from export.front_end.interface import CallResults, OfferedCall
from export.front_end_choice import front_end_of
from export.recipe.schema import INPUT_DTYPES, ExportJob, InputSection

ATTEMPTS_MAX = 64
"""The maximum number of times that a call is tried, each time with other inputs."""
METHOD_ATTEMPTS_MAX = 12
"""The maximum number of times that a method is tried: many methods are no calls of their own."""
ASSUMED_LENGTH = 8
"""The length of a list that is assumed where neither the model nor examples show it."""
_PROBE = "rowcast_probe"
"""An input that no model reads: a call without any could not be traced."""
_MISSING = re.compile(r"raised KeyError(?: \([^)]*\))?: ['\"](.+?)['\"]")
_NAMED = re.compile(r"\b(?:input|feature) '(.+?)'")
_TAKES = re.compile(r"input '(.+?)' is \w+ in the recipe, and the model takes (\w+)")
_CUT = re.compile(r"input '(.+?)' is \w+, which JAX would cut to (\w+)")
# A nested dict was taken for a tensor: the message has the key that was looked up in it.
_LEVEL = re.compile(r"valid indices.*?got '(.+?)'|string indices|only integers, slices")
_TAKES_ITSELF = "seems to take the input itself"
_OTHER_TYPE = re.compile(
    r"that don't all match|does not match (expected )?type|expected to be a \w+ tensor but is"
)
"""Errors of TensorFlow's operations whose operands have different types."""
_NAMED_AS_TOWER = re.compile(r"tower|model|encoder|network")
_Progress = tuple[str, dict[str, InputSection]]
"""The error that a change of inputs leads to, "" if it leads to none, and the changed inputs."""
Run = Callable[[Call, Mapping[str, InputSection]], CallResults]


_NO_RESULTS = CallResults({}, {}, frozenset(), {}, False)


@dataclass
class ObservedCall:
    """What was observed of a call.

    Attributes:
      path: The path of the function; "" is the model itself.
      inputs: The inputs by their names.
      arguments: The names of its arguments; None: it takes one dict.
      assumed: The names of the inputs whose dtype nothing states.
      stated: The inputs that the model itself states.
      results: What could be outputs of a tower.
      problem: Why it could not be called; "": it was.
    """

    path: str = ""
    inputs: dict[str, InputSection] = field(default_factory=dict)
    arguments: tuple[str, ...] | None = None
    assumed: set[str] = field(default_factory=set)
    stated: Mapping[str, InputSection] = field(default_factory=dict)
    results: CallResults = _NO_RESULTS
    problem: str = ""


def observe_calls(
    job: ExportJob, base: Path, checkpoint: Checkpoint, columns: Mapping[str, ColumnInput]
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

    def run(call: Call, inputs: Mapping[str, InputSection]) -> CallResults:
        return front_end.call_results(job, base, call, inputs)

    calls = []
    parts: dict[Call, None] = {}
    inputs_that_ran: dict[str, InputSection] = {}
    with warnings.catch_warnings():
        # Most calls are only tried; the export itself shows the warnings of the right ones.
        warnings.simplefilter("ignore")
        for offered in front_end.offered_calls(job, base):
            call = _CallObserver(run, offered, columns, inputs_that_ran).observed()
            if not call.problem:
                inputs_that_ran |= call.inputs
                parts |= dict.fromkeys(call.results.parts)
            # A method that does not take the model's inputs is a part of another one.
            if not offered.is_method or (not call.problem and call.results.outputs):
                calls.append(call)
        # Scores of each pair of a batch are those of training.
        towers = [
            call
            for call in calls
            if not call.results.outputs
            or any(None not in shape for shape in call.results.outputs.values())
        ]
        towers += _towers_among(parts, towers, run, inputs_that_ran)
        if all(call.problem for call in towers):
            return calls
        return towers


def _towers_among(
    parts: Iterable[Call],
    calls: Sequence[ObservedCall],
    run: Run,
    inputs: Mapping[str, InputSection],
) -> Iterator[ObservedCall]:
    """Yields attributes of the model that are towers: its calls run them, and have no vectors of
    their own.

    Args:
      parts: Calls of attributes.
      calls: The model's own calls.
      run: Returns the results of a call.
      inputs: The inputs with which the model's calls ran.
    """
    if any(
        len(shape) == 1
        for call in calls
        for shape in call.results.outputs.values()
        if shape != (1,)
    ):
        return
    for part in parts:
        if calls and not _NAMED_AS_TOWER.search(part.path.lower()):
            # A ranking model has embedding layers as attributes, too.
            continue
        sections = {name: inputs[name] for name in part.inputs}
        try:
            results = run(part, sections)
        except ExportError:
            continue
        if results.outputs:
            arguments = part.arguments and part.inputs
            yield ObservedCall(part.path, sections, arguments or None, results=results)


class _CallObserver:
    """Tries one call, and changes its inputs by the errors until it runs."""

    def __init__(
        self,
        run: Run,
        offered: OfferedCall,
        columns: Mapping[str, ColumnInput],
        inputs_that_ran: Mapping[str, InputSection],
    ) -> None:
        """Begins with what is known of the call.

        Args:
          run: Returns the results of a call with some inputs, or raises its error.
          offered: The call.
          columns: The inputs that examples show.
          inputs_that_ran: The inputs with which another call of the model ran.
        """
        inputs = dict(offered.inputs)
        if not inputs and offered.takes_arrays:
            for name, column in columns.items():
                inputs[name] = column.array_of_jax
                if name in offered.bags:
                    inputs[name] = column.bag_of_jax
        elif not inputs:
            inputs = {
                name: inputs_that_ran.get(name, column.section) for name, column in columns.items()
            }
        self._run = run
        stated = {
            name: section
            for name, section in offered.inputs.items()
            if name not in offered.open_inputs
        }
        self._call = ObservedCall(offered.path, inputs, stated=stated)
        for name in offered.open_inputs:
            section = inputs[name]
            if name not in columns:
                self._call.assumed.add(name)
            elif section.kind == "dense":
                padded = columns[name].padded
                inputs[name] = padded.model_copy(update={"dtype": section.dtype})
            else:
                # A bag, of which the examples show the dtype.
                inputs[name] = columns[name].section
                stated[name] = inputs[name]
        self._columns = columns
        self._parameters = offered.parameters
        self._attempts_left = ATTEMPTS_MAX
        if offered.is_method:
            self._attempts_left = METHOD_ATTEMPTS_MAX
        self._problems: set[str] = set()
        """The errors that led to a change, which another change must not lead back to."""
        self._before_guesses: tuple[dict[str, InputSection], str] | None = None
        """The inputs before their shapes, kinds and dtypes were guessed, and their error."""

    def observed(self) -> ObservedCall:
        """Returns the call, with its outputs or with the error that is left."""
        call = self._call
        # A call of one parameter may take a dict of inputs, so that is tried first.
        if not call.inputs and len(self._parameters) > 1:
            self._take_arguments()
        call.problem = self._try(call.inputs)
        while call.problem and self._attempts_left > 0:
            self._problems.add(call.problem)
            if not self._correct():
                break
        if call.problem and self._before_guesses is not None:
            # Errors of inputs that were only guessed would hide the error of those that are shown.
            call.inputs, call.problem = self._before_guesses
        if call.problem and not self._columns:
            call.problem += (
                "; name examples as --examples FILE: they show the types and lengths of inputs"
            )
        return call

    def _try(self, inputs: Mapping[str, InputSection]) -> str:
        """Traces the call with some inputs; returns the error, or "" once its outputs are known."""
        self._attempts_left -= 1
        call = self._call
        sections = dict(inputs) or {_PROBE: InputSection(dtype="int32")}
        try:
            results = self._run(Call(call.path, tuple(sections), call.arguments), sections)
        except ExportError as problem:
            return str(problem)
        if not inputs:
            return "the call ran without any input, and a tower needs one"
        for name in results.rows:
            if sections[name].dtype == "string":
                return f"input {name!r} is string in the recipe, and the model takes int64"
        call.results = results
        return ""

    def _take_arguments(self) -> None:
        """Gives the call one input for each of its parameters."""
        self._before_guesses = None
        self._call.arguments = self._parameters
        for name in self._parameters:
            self._call.inputs[name] = InputSection(dtype="int64")
            self._call.assumed.add(name)

    def _correct(self) -> bool:
        """Changes the call by its last error and tries it; returns whether anything was changed."""
        call = self._call
        if _TAKES_ITSELF in call.problem:
            self._before_guesses = None
            call.arguments = tuple(call.inputs)
            return self._change(dict(call.inputs))
        missing = _MISSING.search(call.problem)
        if missing is not None:
            return self._add(missing[1])
        if not call.inputs and self._parameters:
            self._take_arguments()
            return self._change(dict(call.inputs))
        takes = _TAKES.search(call.problem) or _CUT.search(call.problem)
        if takes is not None and takes[1] in call.inputs and takes[2] in INPUT_DTYPES:
            section = call.inputs[takes[1]]
            # What examples or the model itself state is not changed, but for the width of integers,
            # and for texts that are keys of rows.
            is_key = section.dtype == "string" and takes[2] in {"int32", "int64"}
            if takes[1] in call.assumed or is_key or _CUT.search(call.problem):
                changed = _changed(section, dtype=takes[2])
                return self._change(call.inputs | {takes[1]: changed})
        # The input was a dict of inputs: the key that the call looked up is one of them.
        level = _LEVEL.search(call.problem)
        if level is not None and level[1] and call.assumed:
            self._before_guesses = None
            outer = next(reversed(call.inputs))
            del call.inputs[outer]
            call.assumed.discard(outer)
            call.assumed.add(f"{outer}.{level[1]}")
            assumed = InputSection(dtype="int64")
            return self._change(call.inputs | {f"{outer}.{level[1]}": assumed})
        return self._change_kind()

    def _change(self, inputs: dict[str, InputSection]) -> bool:
        """Takes other inputs, whatever the call then says."""
        self._call.inputs = inputs
        self._call.problem = self._try(inputs)
        return True

    def _add(self, name: str) -> bool:
        """Adds an input that the call misses: at the level where it is no longer missed."""
        call = self._call
        # An error does not have the level of the key: nested dicts are tried before the outer one.
        nested = [input_name for input_name in call.inputs if "." in input_name]
        levels = dict.fromkeys(input_name.rpartition(".")[0] for input_name in nested)
        for candidate in [*(f"{level}.{name}" for level in levels), name]:
            if candidate in call.inputs:
                continue
            inputs = call.inputs | {candidate: InputSection(dtype="int64")}
            problem = self._try(inputs)
            missing = _MISSING.search(problem)
            # Any other error shows that the key was found.
            if missing is None or missing[1] != name:
                self._before_guesses = None
                call.inputs = inputs
                call.assumed.add(candidate)
                call.problem = problem
                return True
        return False

    def _change_kind(self) -> bool:
        """Changes the shape, kind or dtype of inputs: of those that the error names, of all that
        examples show alike, then of one input after another. Takes the first change that leads to
        another error, or to none.
        """
        call = self._call
        if self._before_guesses is None:
            self._before_guesses = call.inputs, call.problem
        named = [name for name in _NAMED.findall(call.problem) if name in call.inputs]
        # The input that the call met last is more likely the cause than those before.
        progress = (
            self._progress_by_one(named)
            or self._progress_by_several()
            or self._progress_by_one(reversed(call.inputs))
        )
        if progress is None:
            return False
        call.problem, change = progress
        call.inputs = call.inputs | change
        return True

    def _progress_by_one(self, names: Iterable[str]) -> _Progress | None:
        """Returns the first change of one of the inputs that leads to another error, or to none."""
        for name in names:
            for section in self._alternatives(name):
                if self._attempts_left <= 0:
                    return None
                change = {name: section}
                problem = self._try(self._call.inputs | change)
                if not problem or self._is_progress(problem, change):
                    return problem, change
        return None

    def _progress_by_several(self) -> _Progress | None:
        """Returns a change of all inputs that examples show alike: one that leads to no error, else
        the first one that leads to another error.
        """
        inputs = self._call.inputs
        ragged = [name for name, section in inputs.items() if section.kind == "ragged"]
        arrays = {name: self._columns[name].padded for name in ragged if name in self._columns}
        sparse = {name: _changed(inputs[name], kind="sparse") for name in arrays}
        columns = {
            name: _changed(section, shape=(1,))
            for name, section in inputs.items()
            if self._is_single(name) and section.kind == "dense" and not section.shape
        }
        progress: _Progress | None = None
        for change in (sparse, arrays, columns):
            if not change or self._attempts_left <= 0:
                continue
            problem = self._try(inputs | change)
            if not problem:
                return problem, change
            if progress is None and self._is_progress(problem, change):
                progress = problem, change
        return progress

    def _is_single(self, name: str) -> bool:
        """Returns whether examples show single values of an input."""
        return name in self._columns and not self._columns[name].are_lists

    def _is_progress(self, problem: str, change: Mapping[str, InputSection]) -> bool:
        takes = _TAKES.search(problem)
        return problem not in self._problems and (takes is None or takes[1] not in change)

    def _alternatives(self, name: str) -> Iterator[InputSection]:
        """Yields other sections for an input, the likeliest first."""
        call = self._call
        section = call.inputs[name]
        if name in self._columns:
            yield from self._columns[name].alternatives(section)
            return
        if name not in call.assumed:
            return
        dtypes = [
            _changed(section, dtype=dtype)
            for dtype in ("float32", "string", "int64")
            if dtype != section.dtype
        ]
        shapes = [
            _changed(section, shape=shape)
            for shape in ((ASSUMED_LENGTH,), (1,), ())
            if shape != section.shape
        ]
        if _OTHER_TYPE.search(call.problem):
            yield from dtypes
            yield from shapes
        else:
            yield from shapes
            yield from dtypes


def _changed(section: InputSection, **changes: Any) -> InputSection:
    return section.model_copy(update=changes)
