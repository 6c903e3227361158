"""Warnings about likely mistakes in a recipe, though the job can be done."""

from __future__ import annotations

from collections.abc import Mapping

from bundle.format import manifest
from bundle.format.id_graphs import OperationNode
from export.front_end.specs import FeatureSpec, ModelSpec
from export.id_graphs.descriptions import describe_ids

_Reader = tuple[FeatureSpec, manifest.EmbeddedFeature]


def likely_mistakes(entries: Mapping[str, manifest.Feature], model: ModelSpec) -> tuple[str, ...]:
    """Returns warnings about features of one table whose ids lead to different rows.

    Args:
      entries: The manifest's features.
      model: The traced model.
    """
    return (*_warn_of_first_rows(entries), *_warn_of_rules(entries, model))


def _warn_of_first_rows(entries: Mapping[str, manifest.Feature]) -> list[str]:
    """Warns of features that read one table by one vocabulary, and begin at different
    rows of it.
    """
    first_rows: dict[tuple[str, str], dict[int, str]] = {}
    for name, entry in entries.items():
        # An indicator reads no table, and the row of several inputs is that of no key.
        if not isinstance(entry, manifest.EmbeddedFeature) or not entry.table:
            continue
        if entry.joint is not None:
            continue
        for table in manifest.lookup_tables_of(entry.ids):
            rows = first_rows.setdefault((entry.table, table.vocabulary), {})
            rows.setdefault(table.first_value, name)
    return [
        f"features {' and '.join(map(repr, rows.values()))} read table {table!r} by vocabulary "
        f"{vocabulary!r} from rows {' and '.join(map(str, rows))} on (first_row): one is likely "
        "wrong, which verify.expected would show"
        for (table, vocabulary), rows in first_rows.items()
        if len(rows) > 1
    ]


def _warn_of_rules(entries: Mapping[str, manifest.Feature], model: ModelSpec) -> list[str]:
    """Warns of features that read one table by different rules, where the model does not itself
    compute all of them.
    """
    features: dict[str, dict[str, list[_Reader]]] = {}
    for name, spec in model.features.items():
        entry = entries[name]
        if (
            isinstance(spec, FeatureSpec)
            and isinstance(entry, manifest.EmbeddedFeature)
            and entry.place is None
            and entry.table
        ):
            rule_key = entry.ids.model_dump_json()
            if tables := manifest.lookup_tables_of(entry.ids):
                # Different rows of one vocabulary have a warning of their own.
                rule_key = f"vocabularies {[table.vocabulary for table in tables]}"
            features.setdefault(entry.table, {}).setdefault(rule_key, []).append((spec, entry))

    warnings = []
    for table, by_rule in features.items():
        first_readers = [readers[0] for readers in by_rule.values()]
        # Fields that share a table have an offset each.
        differ_by_offset = all(_is_arithmetic(entry.ids) for _, entry in first_readers)
        are_computed = all(spec.has_rule for spec, _ in first_readers)
        if len(first_readers) < 2 or differ_by_offset or are_computed:
            continue
        listed = " and ".join(
            f"{spec.name!r} ({describe_ids(entry, spec.reads)})" for spec, entry in first_readers
        )
        warnings.append(
            f"features {listed} read table {table!r} by different rules: one is likely wrong, "
            "which verify.expected would show"
        )
    return warnings


def _is_arithmetic(rule: manifest.IdRule) -> bool:
    """Returns whether rows are numbers that are sent, or are computed from these by constants."""
    if not isinstance(rule, manifest.GraphIds) or rule.tables:
        return False
    operations = [node.op for node in rule.nodes if isinstance(node, OperationNode)]
    return not any("String" in op or op == "Bucketize" for op in operations)
