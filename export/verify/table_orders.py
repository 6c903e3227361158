"""Whether results depend on the order of a table of the recipe, which has no meaning in TOML.

A model may iterate over the dict of its inputs, or over a dict that its factory gets. Its results
then depend on the order of the keys. That of training is right, and few checkpoints record it. So
the original model is run with these dicts in other orders: if its results change, recorded outputs
or the recipe must show the order.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from types import FrameType
from typing import Any

import numpy as np
from numpy.typing import NDArray

from bundle.errors import BundleError
from bundle.shown_values import shown_names
from export.bounds import allowed
from export.errors import ExportError, UsageError, VerificationFailed
from export.front_end.calls import Call
from export.front_end.interface import Results
from export.user_lines import at_line, last_of_user
from export.verify.reference_inputs import Reference
from export.verify.reference_model import check_recorded, recorded_values, reference_results
from export.verify.repeated_runs import differences

_REVERSED = " reversed"
"""The end of the name of a tower whose call gets its inputs in the reversed order."""
_ITERATIONS = frozenset(("items", "keys", "values"))


def check_table_orders(reference: Reference, expected: Results) -> None:
    """Checks that the results of the original model depend on no table's order.

    Args:
      reference: The model and its examples.
      expected: The outputs of the model for the examples.

    Raises:
      UsageError: They do, and no recorded outputs show that the order is training's; the message
        names the table, the user's line and how to state the order.
    """
    # A call computes the outputs of all its towers.
    names_by_call: dict[Call, list[str]] = {}
    for name, tower in reference.model.towers.items():
        names_by_call.setdefault(tower.call, []).append(name)
    for call, names in names_by_call.items():
        if not call.is_ordered and any(_keys_of_dicts(call)):
            _check_inputs(reference, call, names, expected)
    for key in ("arguments", "names"):
        if _has_order(getattr(reference.job.code, key)):
            _check_code(reference, key, expected)


def _check_inputs(
    reference: Reference, call: Call, names: Sequence[str], expected: Results
) -> None:
    """Checks that the outputs of the towers of a call do not depend on the order of its inputs."""
    model = reference.model.of(*names)
    ascending = sorted(call.inputs)
    # Both orders are run at once, so that the model is built and restored once.
    orders = {"": ascending, _REVERSED: ascending[::-1]}
    towers = {
        name + end: replace(model.towers[name], name=name + end, call=call.in_order(order))
        for name in names
        for end, order in orders.items()
    }
    reordered = replace(reference, model=replace(model, towers=towers))
    results = _results_of(reordered)
    for name in names:
        runs = [results[name + end] for end in orders if results]
        if not _is_undecided(reference, name, runs, expected):
            continue

        with _iterations_noticed(call) as lines:
            _results_of(reference)
        line = at_line(next(filter(None, lines), ""))
        raise UsageError(
            f"tower {name!r}: {call} iterates over its inputs{line}, and its results depend on "
            "their order, which a table of a recipe does not have; list them as "
            f"towers.{name}.inputs in the order in which training passed them (here by the "
            f"alphabet: {', '.join(ascending)})"
        )


def _check_code(reference: Reference, key: str, expected: Results) -> None:
    """Checks that no output depends on the order of the tables that the model code gets."""
    code = reference.job.code
    tables = getattr(code, key)
    code = code.model_copy(update={key: _reversed(tables)})
    job = reference.job.model_copy(update={"code": code})
    reordered = replace(reference, job=job, original=reference.original.with_recipe(job))
    results = _results_of(reordered)
    for name in reference.model.towers:
        runs = [results[name] for _ in results]
        if _is_undecided(reference, name, runs, expected):
            raise UsageError(
                f"code.{key}: the results of tower {name!r} depend on the order of the tables in "
                f"it ({shown_names(list(tables))}), and a table of a recipe has no order; name a "
                "function as code.factory that passes what they hold in the order of training"
            )


def _results_of(reference: Reference) -> Results:
    """Returns the results of a model whose dicts have another order; {} if it cannot run so."""
    try:
        return reference_results(reference)
    except (BundleError, ExportError):
        return {}


def _is_undecided(
    reference: Reference,
    name: str,
    runs: Sequence[Mapping[str, NDArray[Any]]],
    expected: Results,
) -> bool:
    """Returns whether outputs of a tower depend on an order that no recorded output shows.

    Args:
      reference: The model and its examples.
      name: The tower.
      runs: The outputs of the tower in other orders; () if the model cannot run in these.
      expected: The outputs of all towers in the recipe's order.
    """
    other_runs = [run for run in runs if not _agree(reference, name, run, expected[name])]
    if runs and not other_runs:
        return False
    recorded = reference.examples.recorded
    outputs = [recorded_values(name, output, recorded) for output in expected[name]]
    is_recorded = any(values is not None for values in outputs)
    # The recipe's order agrees with recorded outputs: `finite_results` compared them.
    if is_recorded and all(_contradicts(name, run, recorded) for run in other_runs):
        return False
    # Random results differ in any order; the comparison with the towers reports them.
    repeated = reference_results(reference)[name]
    return _agree(reference, name, repeated, expected[name])


def _agree(
    reference: Reference,
    name: str,
    results: Mapping[str, NDArray[Any]],
    expected: Mapping[str, NDArray[Any]],
) -> bool:
    """Returns whether outputs of a tower are equal but for the rounding of sums."""
    limit = None
    if reference.model.towers[name].half:
        limit = reference.job.towers[name].max_abs_error.get("f32")
    found = differences({name: results}, {name: expected}, lambda values: allowed(values, limit))
    return next(found, None) is None


def _contradicts(
    name: str, results: Mapping[str, NDArray[Any]], recorded: Mapping[str, NDArray[np.float64]]
) -> bool:
    """Returns whether recorded outputs are others than the results of a tower."""
    try:
        check_recorded({name: dict(results)}, recorded)
    except VerificationFailed:
        return True
    return False


def _has_order(value: Any) -> bool:
    """Returns whether a table of two keys or more is in a value of the recipe."""
    if isinstance(value, Mapping):
        return len(value) > 1 or any(map(_has_order, value.values()))
    return isinstance(value, list) and any(map(_has_order, value))


def _reversed(value: Any) -> Any:
    """Returns a value of the recipe with its tables in the reversed order."""
    if isinstance(value, Mapping):
        return {key: _reversed(value[key]) for key in reversed(value)}
    if isinstance(value, list):
        return [_reversed(element) for element in value]
    return value


@contextmanager
def _iterations_noticed(call: Call) -> Iterator[list[str]]:
    """Fills a list, inside the `with` block, with the user's lines that iterate over a dict of a
    call's inputs, by `items`, `keys` or `values`; behind them the functions that are passed one.
    """
    lines: list[str] = []
    functions: list[str] = []
    keys_of_dicts = list(_keys_of_dicts(call))

    def is_dict_of_inputs(value: Any) -> bool:
        # By its keys, since Keras passes a copy of the dict.
        return type(value) is dict and set(value) in keys_of_dicts

    def notice(frame: FrameType, event: str, function: Any) -> None:
        code = frame.f_code
        if event == "call" and any(map(is_dict_of_inputs, frame.f_locals.values())):
            functions.append(last_of_user([(code.co_filename, code.co_firstlineno)]))
        if event != "c_call" or function.__name__ not in _ITERATIONS:
            return
        if is_dict_of_inputs(getattr(function, "__self__", None)):
            lines.append(last_of_user([(code.co_filename, frame.f_lineno)]))

    profile = sys.getprofile()
    sys.setprofile(notice)
    try:
        yield lines
    finally:
        sys.setprofile(profile)
        lines += functions


def _keys_of_dicts(call: Call) -> Iterator[set[str]]:
    """Yields the keys of each dict in the arguments of a call that has two or more."""
    pending: list[Any] = list(call.bind({name: name for name in call.inputs}))
    # The list grows while it is walked.
    for value in pending:
        if isinstance(value, Mapping):
            pending += value.values()
            if len(value) > 1:
                yield set(value)
        elif isinstance(value, list | tuple):
            pending += value
