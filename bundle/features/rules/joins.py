"""Several inputs -> rows: the string that their values make together, hashed or found in a vocabulary."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from bundle.features.columns import Column, Offsets
from bundle.features.rules import crosses, ids
from bundle.features.rules.crosses import Crossed, changed_text, key_rule
from bundle.features.rules.opened import rule_of
from bundle.format.id_rules import CrossKey, JoinedIds
from bundle.tables.id_values import Rows, Values, strings
from bundle.tables.vocabularies import Vocabulary


class Joined:
    """Row = what a rule makes of the values of an example, written one after another with texts between them.

    Attributes:
      names: of the inputs.
      rows: of the table.
      page: what the manifest says.
      keys: what makes a number of a value of each input; None: it is a string.
      changed: what changes that first, if anything does.
      rule: what makes a row of the string.
    """

    def __init__(
        self, names: Sequence[str], rows: int, page: JoinedIds, vocabularies: Mapping[str, Vocabulary]
    ) -> None:
        self.names, self.rows, self.page = names, rows, page
        self.keys = [
            None if _is_text(key) else key_rule(name, key, vocabularies)
            for name, key in zip(names, page.keys, strict=True)
        ]
        self.changed = [changed_text(name, key) for name, key in zip(names, page.keys, strict=True)]
        self.rule = rule_of(names[0], rows, page.ids, vocabularies)
        self._template = "%s".join(text.replace("%", "%%") for text in page.texts)

    def resolve(self, columns: Sequence[Column], n: int) -> tuple[Rows, Offsets]:
        """Resolves n examples; see crosses.Crossed.resolve. Each column holds one value of each.

        Source: TensorFlow 2.20, core/kernels/string_join_op.cc and as_string_op.cc (the rule).
        """
        return self.rule.resolve(self.texts(columns)), np.arange(n + 1, dtype=np.int64)

    def texts(self, columns: Sequence[Column]) -> Values:
        """Returns [n] object: the string of each example."""
        parts = []
        told = zip(self.names, self.keys, self.changed, self.page.keys, columns, strict=True)
        for name, key, changed, page, column in told:
            if key is None:
                values = strings(name, column.values) if changed is None else changed.changed(column.values)
                parts.append(values.tolist())
                continue
            rows = key.resolve(column.values)
            parts.append((rows if page.unknown_row is None else np.where(rows < 0, page.unknown_row, rows)).tolist())
        found = np.empty(len(parts[0]), object)
        found[:] = [self._template % each for each in zip(*parts, strict=True)]
        return found


def resolve_all(
    rules: Sequence[Crossed | Joined], columns: Sequence[Sequence[Column]], n: int
) -> list[tuple[Rows, Offsets] | None]:
    """Returns what `resolve` does of many rules of several inputs each; None of crosses, see crosses.resolve_all."""
    found: list[tuple[Rows, Offsets] | None] = [None] * len(rules)
    crossed = [(place, rule) for place, rule in enumerate(rules) if isinstance(rule, Crossed)]
    joined = [(place, rule) for place, rule in enumerate(rules) if isinstance(rule, Joined)]
    made = crosses.resolve_all([rule for _, rule in crossed], [columns[place] for place, _ in crossed], n)
    for (place, _), each in zip(crossed, made, strict=True):
        found[place] = each
    texts = [rule.texts(columns[place]) for place, rule in joined]
    one_each = np.arange(n + 1, dtype=np.int64)
    for (place, _), rows in zip(joined, ids.resolve_all([rule.rule for _, rule in joined], texts), strict=True):
        found[place] = rows, one_each
    return found


def _is_text(key: CrossKey) -> bool:
    return key.dtype == "string" and key.ids is None and key.boundaries is None
