"""Rows of ids, by the rules of the manifest. Any difference between these rules and training is
train/serve skew.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate, pairwise
from operator import attrgetter
from typing import Any

import numpy as np
from numpy.typing import NDArray

from bundle.errors import FeatureError, FormatError
from bundle.features.ids.graphs import Graph
from bundle.format.id_graphs import IDENTITY, GraphIds
from bundle.format.ids import KeyedIds
from bundle.tables.id_values import Rows, Values, integers
from bundle.tables.key_index import KeyIndex
from bundle.tables.vocabularies import Vocabulary

Parameters = Sequence[NDArray[Any]]
"""The constants by which rules of one form differ: each is one value, or one for each id."""
Evaluation = Callable[[str, Values, Parameters], Rows]
"""A function that takes the input's name, for errors, [m] ids and parameters; returns [m] int64."""
_NO_ROWS = np.empty(0, np.int64)
_DTYPE = attrgetter("dtype")


@dataclass(frozen=True)
class Rule:
    """How the ids of one input become rows.

    Attributes:
      evaluate: A function that makes a row of each id.
      form: A key that is equal for rules whose `evaluate` differs by its parameters alone.
      parameters: The parameters of `evaluate`, arrays without axes.
    """

    evaluate: Evaluation
    form: Hashable
    parameters: tuple[NDArray[Any], ...] = ()

    def resolve(self, feature: str, values: Values) -> Rows:
        """Returns [m] int64 rows; they are negative, or past the end of the table, where an id is
        unknown.

        Raises:
          FeatureError: A value is no id; names `feature`.
        """
        return self.evaluate(feature, values, self.parameters)


class RuleSet:
    """The rules of several features, which are resolved together: rules of one form evaluate all
    their ids in one call.
    """

    def __init__(self, rules: Sequence[Rule], features: Sequence[str]) -> None:
        """Takes the rule of each feature, and the name of its input in errors."""
        self._rules = rules
        self._features = features
        self._no_rows = [_NO_ROWS] * len(rules)
        self._groups: dict[tuple[np.dtype[Any], ...], list[_Group]] = {}

    def resolve(self, columns: Sequence[Values]) -> list[Rows]:
        """Returns what `Rule.resolve` returns for each column."""
        # An input of strings or integers may come as either, and only equal types are joined. The
        # groups are cached by the types: requests to a model mostly agree in them.
        dtypes = tuple(map(_DTYPE, columns))
        if dtypes not in self._groups:
            self._groups[dtypes] = self._grouped(dtypes)
        rows = [*self._no_rows]
        for group in self._groups[dtypes]:
            # A rule that is alone in its group needs no copy of its ids.
            member = group.only_member
            if member is not None:
                rule = self._rules[member]
                rows[member] = rule.evaluate(
                    self._features[member], columns[member], rule.parameters
                )
            else:
                self._evaluate(group, columns, rows)
        return rows

    def _grouped(self, dtypes: Sequence[np.dtype[Any]]) -> list[_Group]:
        members: dict[Any, list[int]] = {}
        for member, (rule, dtype) in enumerate(zip(self._rules, dtypes, strict=True)):
            members.setdefault((rule.form, dtype), []).append(member)
        return [_Group.of(self._rules, group) for group in members.values()]

    def _evaluate(self, group: _Group, columns: Sequence[Values], rows: list[Rows]) -> None:
        """Evaluates the ids of rules of one form; writes the rows of each to `rows`."""
        group_columns = [columns[member] for member in group.members]
        first = group.members[0]
        sizes = [values.size for values in group_columns]
        parameters = []
        for parameter in group.parameters:
            if parameter.ndim:
                parameter = parameter.repeat(sizes)  # noqa: PLW2901 - the same parameter
            parameters.append(parameter)
        try:
            all_rows = self._rules[first].evaluate(
                self._features[first], np.concatenate(group_columns), parameters
            )
        # The error names the first input, whose values may be sound: each rule is evaluated by
        # itself to find the one at fault.
        except FeatureError:
            for member, values in zip(group.members, group_columns, strict=True):
                rows[member] = self._rules[member].resolve(self._features[member], values)
            return
        rows_by_member = split(all_rows, group_columns)
        for member, member_rows in zip(group.members, rows_by_member, strict=True):
            rows[member] = member_rows


@dataclass(frozen=True)
class _Group:
    """Rules of one form.

    Attributes:
      members: The positions of the rules.
      only_member: The position of the only rule; None if there are several.
      parameters: The parameters: each is one value where all rules agree, otherwise one per rule.
    """

    members: list[int]
    only_member: int | None
    parameters: list[NDArray[Any]]

    @classmethod
    def of(cls, rules: Sequence[Rule], members: list[int]) -> _Group:
        """Creates a group from the parameters of some rules."""
        parameters = []
        for values in zip(*[rules[member].parameters for member in members], strict=True):
            # One value for all ids is cheaper than one repeated for each.
            if all(value == values[0] for value in values):
                parameters.append(values[0])
            else:
                parameters.append(np.array([value[()] for value in values], values[0].dtype))
        only_member = None
        if len(members) == 1:
            only_member = members[0]
        return cls(members, only_member, parameters)


def split(whole: NDArray[Any], parts: Sequence[NDArray[Any]]) -> list[NDArray[Any]]:
    """Cuts a [m] array into views as long as `parts`, whose sizes add up to m."""
    if len(parts) == 1:
        return [whole]
    sizes = [part.size for part in parts]
    ends = accumulate(sizes, initial=0)
    return [whole[start:end] for start, end in pairwise(ends)]


def within(rows: Rows, limits: NDArray[np.uint64] | int) -> Rows:
    """Returns rows with -1 for those outside [0, limit)."""
    # As unsigned integers, negative rows are huge: one comparison covers both ends.
    (beyond,) = (rows.view(np.uint64) >= np.uint64(limits)).nonzero()
    if not beyond.size:
        return rows
    inside = rows.copy()
    inside[beyond] = -1
    return inside


def rule_of(
    entry: GraphIds | KeyedIds,
    vocabularies: Mapping[str, Vocabulary],
    keys: Mapping[str, KeyIndex] | None = None,
) -> Rule:
    """Returns the rule that a manifest entry describes.

    Raises:
      KeyError: Its vocabulary or key index is not among the open ones that were passed.
      FormatError: A graph cannot be computed; names the node.
    """
    if isinstance(entry, KeyedIds):
        index = (keys or {})[entry.keys]
        return Rule(
            lambda feature, values, _parameters: index.find(integers(feature, values)),
            ("keyed", entry.keys),
        )
    if entry == IDENTITY:
        return Rule(lambda feature, values, _parameters: integers(feature, values), "identity")
    if len(entry.inputs) != 1:
        raise FormatError(f"a graph of one feature's ids has one input, not {len(entry.inputs)}")
    graph = Graph(entry, [vocabularies[table.vocabulary] for table in entry.tables])
    return Rule(graph.rows, graph.form, graph.parameters)
