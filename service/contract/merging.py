"""Several requests as one, and its result as theirs, by the axes of their fields.

A request of n examples and one of m examples are one of n + m if they differ in nothing else: rows
are read and combined, towers run and indexes are searched for each example by itself. The key of a
request holds everything else: its options, and the form of what it sends for each example. A field
without an axis is an option, so that one that is added later keeps requests apart, too.

A request that may be wrong has no key if the fault could be hidden by others, such as weights that
are too few. Any other fault is still there in the merged request, which fails; each of its requests
is then computed alone.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from itertools import pairwise
from operator import attrgetter
from typing import Any, NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray

from bundle.features.columns import Column
from bundle.tables.offsets import Offsets, lengths_of, offsets_of
from service.contract import forms
from service.contract.forms import Axis, Form, IdLists
from service.contract.layouts import layout_of

OPTION_SIZE_MAX = 1024
"""Terms and values of a filter that is compared with those of other requests. To compare more takes
the event loop longer, and large filters are seldom equal.
"""
Sizes = list[int]
"""The number of examples of a request, and of their entries, by axis."""
_EXAMPLE = int(Axis.EXAMPLE)
_ENTRY = int(Axis.ENTRY)
_UNKNOWN = -1


class NotAlike(Exception):
    """A request has a form in which it cannot be merged."""


class Counter(Protocol):
    """What a model version says of the size of requests. Both methods raise NotAlike if it is not
    known before a request is checked.
    """

    def count_examples(self, columns: Mapping[str, Column]) -> int:
        """Returns how many examples packed columns hold."""

    def dim(self, request: Any) -> int:
        """Returns the length of the vectors of a request."""


@dataclass(frozen=True)
class MergedRequest:
    """Several requests as one.

    Attributes:
      request: The merged request.
      ends: [r + 1]; request i has the examples ends[i]:ends[i + 1]: queries, contexts, examples
        or, of a lookup, ids.
    """

    request: Any
    ends: Offsets


class _Plan(NamedTuple):
    """How requests of a class are compared. It runs for every request: all that follows from the
    class is computed once.

    Attributes:
      options: Returns the options that are compared as they are.
      fields: The name of each other field, and its form.
      values: Returns the values of these, in the same order.
      keys: What returns the key of a field, with its position and its form.
      counted: The fields that tell how long an axis is: the position, the axis, and a function.
      tables: The columns, which tell it if no other field does: the position and the axis.
      division: The position of the offsets that divide entries; -1: there are none.
      of_each: Whether their absence stands for one entry of each example.
    """

    options: Callable[[Any], Hashable]
    fields: Sequence[tuple[str, Any]]
    values: Callable[[Any], Sequence[Any]]
    keys: Sequence[tuple[int, Any, Callable[[Any, Any, Sizes], Hashable]]]
    counted: Sequence[tuple[int, int, Callable[[Any, Any, Counter], int]]]
    tables: Sequence[tuple[int, int]]
    division: int
    of_each: bool


@cache
def _plan_of(cls: Any) -> _Plan:
    options = []
    fields: list[tuple[str, Any]] = []
    keys = []
    counted = []
    tables = []
    division = -1
    of_each = True
    for name, form in layout_of(cls).forms.items():
        kind = type(form)
        if form.axis is None and kind not in _KEYS:
            options.append(name)
            continue
        if kind in _SIZES:
            counted.append((len(fields), int(form.axis or 0), _SIZES[kind]))
        elif kind is forms.Columns:
            tables.append((len(fields), int(form.axis or 0)))
        elif isinstance(form, forms.Division):
            division = len(fields)
            of_each = form.of_each
        # Absent offsets of one example stand for some: they are no difference.
        if kind in _KEYS and (kind is not forms.Division or of_each):
            keys.append((len(fields), form, _KEYS[kind]))
        fields.append((name, form))
    values = _getter([name for name, _ in fields])
    return _Plan(_getter(options), fields, values, keys, counted, tables, division, of_each)


def _getter(names: Sequence[str]) -> Callable[[Any], Any]:
    """Returns a function that returns the attributes of some names as a tuple."""
    if not names:
        return lambda _value: ()
    get = attrgetter(*names)
    if len(names) > 1:
        return get
    return lambda value: (get(value),)


def key_of(request: Any, counter: Counter) -> Hashable | None:
    """Returns the key of a request, equal for all that can be merged; None: it is computed alone.

    Args:
      request: A request of any call.
      counter: The model version that serves it.
    """
    # Calls of shards have no body, and are not merged.
    if not hasattr(request, "body"):
        return None
    plan = _plan_of(request.__class__)
    values = plan.values(request)
    try:
        sizes = _sizes_of(request, plan, values, counter)
        return request.__class__, plan.options(request), _key_of_fields(plan, values, sizes)
    except NotAlike:
        return None


def merge(requests: Sequence[Any], counter: Counter) -> MergedRequest:
    """Returns one request for several whose keys are equal.

    Args:
      requests: The requests.
      counter: The model version that serves them.
    """
    plan = _plan_of(requests[0].__class__)
    sizes = [_sizes_of(request, plan, plan.values(request), counter) for request in requests]
    ends = offsets_of([examples for examples, _ in sizes])
    return MergedRequest(_merged(requests, sizes), ends)


def split(result: Any, ends: Offsets) -> list[Any]:
    """Returns the result of each request.

    Args:
      result: The result of the merged request.
      ends: [r + 1]; request i has the examples ends[i]:ends[i + 1].

    Raises:
      ValueError: The result is for another number of examples.
    """
    plan = _plan_of(result.__class__)
    values = plan.values(result)
    starts = None
    if plan.division < 0:
        count = len(values[0])
    else:
        starts = values[plan.division].tolist()
        count = len(starts) - 1
    # A wrong split would give a client the results of another one.
    if count != ends[-1]:
        raise ValueError(f"the response is for {count} examples, and the requests have {ends[-1]}")
    along = [
        (name, form, value)
        for (name, form), value in zip(plan.fields, values, strict=True)
        if value is not None
    ]
    parts = []
    for first, end in pairwise(ends.tolist()):
        bounds = [slice(first, end)]
        if starts is not None:
            bounds.append(slice(starts[first], starts[end]))
        # Not `replace`, which makes three times as many calls.
        fields = dict(vars(result))
        for name, form, value in along:
            fields[name] = _part(value, form, bounds)
        parts.append(result.__class__(**fields))
    return parts


def _sizes_of(request: Any, plan: _Plan, values: Sequence[Any], counter: Counter) -> Sizes:
    """Returns the number of examples of a request, and of their entries.

    Raises:
      NotAlike: They are not known before the request is checked, or there are none.
    """
    sizes = [_UNKNOWN, _UNKNOWN]
    for position, axis, count in plan.counted:
        if values[position] is not None:
            sizes[axis] = count(values[position], request, counter)
    offsets = None
    if plan.division >= 0:
        offsets = values[plan.division]
        _divide(plan, offsets, sizes)
    for position, axis in plan.tables:
        if sizes[axis] == _UNKNOWN and values[position]:
            sizes[axis] = counter.count_examples(values[position])
    # What is missing, or empty, is an error of each request.
    if sizes[_EXAMPLE] < 1 or (sizes[_ENTRY] < 1 and not plan.of_each):
        raise NotAlike
    if offsets is not None:
        _check_offsets(offsets, *sizes)
    return sizes


def _divide(plan: _Plan, offsets: Offsets | None, sizes: Sizes) -> None:
    """Sets the number of examples among which entries are divided."""
    if offsets is not None:
        sizes[_EXAMPLE] = offsets.size - 1
    elif not plan.of_each:
        sizes[_EXAMPLE] = 1
    elif sizes[_ENTRY] != _UNKNOWN:
        sizes[_EXAMPLE] = sizes[_ENTRY]


def _vector_count(vectors: NDArray[np.float32], request: Any, counter: Counter) -> int:
    """Returns the number of vectors, [n, dim] or flat."""
    dim = counter.dim(request)
    count = int(vectors.size) // dim
    if vectors.size % dim or vectors.shape not in {(vectors.size,), (count, dim)}:
        raise NotAlike
    return count


_SIZES: Mapping[type[Form], Callable[[Any, Any, Counter], int]] = {
    forms.Ids: lambda ids, _request, _counter: int(ids.size),
    forms.Values: lambda column, _request, _counter: int(column.values.size),
    forms.Vectors: _vector_count,
}
"""How many examples or entries the value of a field has, by its form."""


def _key_of_fields(plan: _Plan, values: Sequence[Any], sizes: Sizes) -> Hashable:
    """Returns what is equal for the fields of requests that differ in examples alone."""
    key: list[Hashable] = []
    for position, form, key_of_field in plan.keys:
        # The position says which fields are sent.
        if values[position] is not None:
            key += position, key_of_field(values[position], form, sizes)
    return tuple(key)


def _key_of_part(part: Any, sizes: Sizes) -> Hashable:
    """Returns the key of an object in a request."""
    plan = _plan_of(part.__class__)
    return plan.options(part), _key_of_fields(plan, plan.values(part), sizes)


def _columns_key(columns: Mapping[str, Column], form: Any, sizes: Sizes) -> Hashable:
    """Returns a key that is equal for columns of the same names, types and values per example."""
    if not columns:
        return ()
    n = sizes[form.axis]
    # This runs for every request, so it makes one pass over the columns, with few calls.
    kinds: dict[str, Hashable] = {}
    for name, (values, offsets, weights) in columns.items():
        size = values.size
        if values.ndim != 1:
            raise NotAlike
        per_example = -1
        if offsets is None:
            per_example = size // n
            if per_example * n != size:
                raise NotAlike
        else:
            _check_offsets(offsets, n, size)
        if weights is None:
            kinds[name] = values.dtype.char, per_example
        elif weights.shape == values.shape:
            kinds[name] = values.dtype.char, per_example, weights.dtype.char
        else:
            raise NotAlike
    return frozenset(kinds.items())


def _ids_key(ids: NDArray[Any], form: Any, sizes: Sizes) -> Hashable:
    if ids.shape != (sizes[form.axis],):
        raise NotAlike
    return ids.dtype.char


def _values_key(column: Column, form: Any, sizes: Sizes) -> Hashable:
    if column.offsets is not None or column.weights is not None:
        raise NotAlike
    return _ids_key(column.values, form, sizes)


def _vectors_key(vectors: NDArray[Any], form: Any, sizes: Sizes) -> Hashable:  # noqa: ARG001
    return vectors.dtype.char


def _lists_key(lists: IdLists, form: Any, sizes: Sizes) -> Hashable:
    """Returns a key that is equal for lists of ids of one type, one of each example."""
    n = sizes[form.axis]
    if lists.offsets is not None:
        _check_offsets(lists.offsets, n, lists.ids.size)
    elif n > 1:  # all examples share one list, which is not copied for each
        raise NotAlike
    return lists.ids.dtype.char


def _struct_key(content: Any, form: forms.Struct, sizes: Sizes) -> Hashable:
    if form.is_list:
        return tuple([_key_of_part(element, sizes) for element in content])
    if content.size > OPTION_SIZE_MAX:
        raise NotAlike
    return _key_of_part(content, sizes)


def _tokens_key(tokens: NDArray[Any], form: Any, sizes: Sizes) -> Hashable:  # noqa: ARG001
    if tokens.dtype == object:
        # Equal values of different types are other tokens: 1, 1.0 and True are equal in Python.
        values = tokens.tolist()
        return tuple(values), tuple(map(type, values))
    return tokens.dtype.char, tokens.tobytes()


_KEYS: Mapping[type[Form], Callable[[Any, Any, Sizes], Hashable]] = {
    forms.Columns: _columns_key,
    forms.Counts: lambda counts, _form, _sizes: tuple(counts.items()),
    forms.Division: lambda _offsets, _form, _sizes: True,
    forms.Ids: _ids_key,
    forms.Lists: _lists_key,
    forms.Struct: _struct_key,
    forms.StructByName: lambda content, _form, sizes: tuple(
        [(name, _key_of_part(element, sizes)) for name, element in content.items()]
    ),
    forms.Tokens: _tokens_key,
    forms.Values: _values_key,
    forms.Vectors: _vectors_key,
}
"""The key of a field that is not compared as it is, by its form."""


def _check_offsets(offsets: Offsets, n: int, size: int) -> None:
    """Raises NotAlike if offsets do not begin and end as those of n lists of `size` values."""
    if offsets.shape != (n + 1,) or offsets[0] != 0 or offsets[-1] != size:
        raise NotAlike


def _merged(requests: Sequence[Any], sizes: Sequence[Sizes]) -> Any:
    """Returns one request, or one part of a request, for several."""
    first = requests[0]
    plan = _plan_of(first.__class__)
    contents = list(zip(*[plan.values(request) for request in requests], strict=True))
    changes = dict(vars(first))
    # The axes whose length is known without columns.
    counted_axes = set()
    if plan.division >= 0 and not plan.of_each:
        contents[plan.division] = _divisions(contents[plan.division], sizes)
        counted_axes.add(_EXAMPLE)
    for (name, form), values in zip(plan.fields, contents, strict=True):
        kind = type(form)
        if values[0] is None:
            continue
        if kind is forms.Struct and form.is_list:
            # Equal keys: the same elements in the same order, but for what lies along an axis.
            changes[name] = tuple([_merged(same, sizes) for same in zip(*values, strict=True)])
        elif kind in _JOINS:
            changes[name] = _JOINS[kind](values)
        if kind is forms.Ids:
            counted_axes.add(form.axis)
    for position, axis in plan.tables:
        columns = changes[plan.fields[position][0]]
        if axis not in counted_axes and columns:
            _show_count(columns, sum([size[axis] for size in sizes]))
    return first.__class__(**changes)


def _divisions(offsets_by_request: Sequence[Any], sizes: Sequence[Sizes]) -> tuple[Offsets, ...]:
    """Returns the offsets of each request. Without any, one context owns all candidates of its
    request, but not those of the others.
    """
    complete = list(offsets_by_request)
    for number, (_, entries) in enumerate(sizes):
        if complete[number] is None:
            complete[number] = np.array([0, entries])
    return tuple(complete)


def _join_columns(tables: Sequence[Mapping[str, Column]]) -> dict[str, Column]:
    return {name: _join_column([table[name] for table in tables]) for name in tables[0]}


def _join_column(columns: Sequence[Column]) -> Column:
    values, offsets, weights = zip(*columns, strict=True)
    all_offsets = None
    if offsets[0] is not None:
        all_offsets = _join_offsets(offsets)
    all_weights = None
    if weights[0] is not None:
        all_weights = np.concatenate(weights)
    return Column(np.concatenate(values), all_offsets, all_weights)


def _join_offsets(offsets_by_request: Sequence[Offsets]) -> Offsets:
    """Returns the offsets of all requests. The offsets of each request begin at 0."""
    return offsets_of(np.concatenate([lengths_of(offsets) for offsets in offsets_by_request]))


def _join_lists(lists_by_request: Sequence[IdLists]) -> IdLists:
    """Returns the lists of all requests. A request whose lists have no offsets has one example."""
    lengths = []
    for lists in lists_by_request:
        if lists.offsets is None:
            lengths.append(np.array([lists.ids.size]))
        else:
            lengths.append(lengths_of(lists.offsets))
    ids = np.concatenate([lists.ids for lists in lists_by_request])
    return IdLists(ids, offsets_of(np.concatenate(lengths)))


def _join_vectors(vectors_by_request: Sequence[NDArray[np.float32]]) -> NDArray[np.float32]:
    # Flat, since one request may have [n, dim] and another one [n * dim] vectors.
    return np.concatenate([vectors.ravel() for vectors in vectors_by_request])


_JOINS: Mapping[type[Form], Callable[[Sequence[Any]], Any]] = {
    forms.Columns: _join_columns,
    forms.Division: _join_offsets,
    forms.Ids: np.concatenate,
    forms.Lists: _join_lists,
    forms.Values: _join_column,
    forms.Vectors: _join_vectors,
}
"""The values of all requests, one after another, by the form of their field."""


def _show_count(columns: dict[str, Column], n: int) -> None:
    """Gives a column offsets, which show that there are n examples, unless one has some: columns
    without offsets may not show it.
    """
    for column in columns.values():
        if column.offsets is not None:
            return
    name, column = next(iter(columns.items()))
    columns[name] = column._replace(offsets=np.arange(n + 1) * (column.values.size // n))


def _part(value: Any, form: Any, bounds: Sequence[slice]) -> Any:
    """Returns what a field of a result has for the examples of one request."""
    examples = bounds[_EXAMPLE]
    if isinstance(value, IdLists):
        if value.offsets is None:
            return value
        offsets = value.offsets[examples.start : examples.stop + 1]
        return IdLists(value.ids[offsets[0] : offsets[-1]], offsets - offsets[0])
    if type(form) is forms.Division:
        offsets = value[examples.start : examples.stop + 1]
        return offsets - offsets[0]
    along = bounds[form.axis]
    if isinstance(value, dict):
        return {name: column[along] for name, column in value.items()}
    return value[along]
