"""Feature specifications of jax-tpu-embedding, as a model file returns them: which table each
feature reads, and how its rows are combined.

They are read by the names of their fields alone, from objects or from mappings, so that an export
needs no jax-tpu-embedding:

    FeatureSpec   name, table_spec, input_shape, output_shape
    TableSpec     name, vocabulary_size, embedding_dim, combiner, quantization_config,
                  setting_in_stack, stacked_table_spec

Source: jax-tpu-embedding 0.1.0, sparsecore/lib/nn/embedding_spec.py.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from numbers import Integral
from typing import Any, cast, get_args

from export.errors import NotConvertible
from export.front_end.specs import Combiner
from export.tensorflow_models.lookups.activations import PooledTable, StatedSizes

_COMBINERS = get_args(Combiner)
_FORM = (
    "a specification has `name` and `table_spec`, which has `name`, `vocabulary_size`, "
    "`embedding_dim` and `combiner`: a FeatureSpec of jax-tpu-embedding, or a dict with these keys"
)


@dataclass(frozen=True)
class PlaceInStack:
    """Where a stack holds a table, as jax-tpu-embedding computed it for the devices of training.

    Attributes:
      stack: the name of the stack.
      stack_rows: rows of the stack.
      padded_rows: rows that the stack has for this table.
      offset: the table's first row on each SparseCore.
      rotation: how many SparseCores further than its own number row 0 is.
    """

    stack: str
    stack_rows: int
    padded_rows: int
    offset: int
    rotation: int


@dataclass(frozen=True)
class SpecifiedTable(PooledTable):
    """A table as feature specifications of jax-tpu-embedding describe it.

    Attributes:
      place: where its stack holds it; None: the specifications are not prepared for training.
    """

    place: PlaceInStack | None = None


@dataclass(frozen=True)
class FeatureSpecs:
    """The feature specifications of a model.

    Attributes:
      tree: as the model file returned them.
      table_of: the table that each feature reads, by the feature's name.
      sizes_of: the sizes that each feature's specification states, by the feature's name.
    """

    tree: Any
    table_of: Mapping[str, SpecifiedTable]
    sizes_of: Mapping[str, StatedSizes]

    @property
    def tables(self) -> dict[str, SpecifiedTable]:
        """Returns the tables by their names."""
        return {table.name: table for table in self.table_of.values()}


def read_feature_specs(tree: Any) -> FeatureSpecs:
    """Reads feature specifications: a mapping by the feature's name, a list, or a nest of them.

    Raises:
      NotConvertible: something else is among them, a field is missing or wrong, or two
        specifications contradict each other; names both.
    """
    table_of: dict[str, SpecifiedTable] = {}
    sizes_of: dict[str, StatedSizes] = {}
    described: dict[str, tuple[str, SpecifiedTable]] = {}
    for where, key, spec in _leaves(tree, "feature_specs", ""):
        feature = _feature_name(spec, where, key)
        if feature in table_of:
            raise NotConvertible(
                f"{where}: another feature specification is called {feature!r}, too; "
                "activations are found by name: give each feature its own"
            )
        table = _table(_field(spec, "table_spec", where), f"{where}.table_spec")
        first_where, first = described.setdefault(table.name, (where, table))
        if first != table:
            raise NotConvertible(
                f"{first_where} and {where} describe table {table.name!r} differently: "
                f"{differences(first, table)}; let both have the same table_spec"
            )
        _check_output(spec, table, where)
        table_of[feature] = table
        sizes_of[feature] = _sizes(spec, where)
    if not table_of:
        raise NotConvertible(
            "the factory returned no feature specification beside its functions; leave "
            f"feature_specs out, or fill it: {_FORM}"
        )
    return FeatureSpecs(tree, table_of, sizes_of)


def differences(first: SpecifiedTable, second: SpecifiedTable) -> str:
    """Returns what two descriptions of a table differ in, as part of a sentence; "" if nothing."""
    named = (
        ("its name", first.name, second.name),
        ("vocabulary_size", first.rows, second.rows),
        ("embedding_dim", first.dim, second.dim),
        ("combiner", first.combiner, second.combiner),
        ("the place in its stack", first.place, second.place),
    )
    return ", ".join(f"{what} {one!r} and {two!r}" for what, one, two in named if one != two)


def is_spec(node: Any) -> bool:
    """Returns whether a node of a tree is a specification, and not a branch."""
    return "table_spec" in node if isinstance(node, Mapping) else hasattr(node, "table_spec")


def _leaves(node: Any, where: str, key: str) -> Iterator[tuple[str, str, Any]]:
    """Yields each specification with its place in the tree, and its key if the tree is flat."""
    if is_spec(node):
        yield where, key, node
    elif isinstance(node, Mapping):
        flat = where == "feature_specs"
        for name, child in node.items():
            yield from _leaves(child, f"{where}[{name!r}]", str(name) if flat else "")
    elif isinstance(node, list | tuple):
        for position, child in enumerate(node):
            yield from _leaves(child, f"{where}[{position}]", "")
    else:
        raise NotConvertible(f"{where} is a {type(node).__name__}; {_FORM}")


def _feature_name(spec: Any, where: str, key: str) -> str:
    own = _optional(spec, "name")
    if own is None and key:
        return key
    name = _text(_field(spec, "name", where), f"{where}.name")
    if key and key != name:
        raise NotConvertible(
            f"{where} has the name {name!r}: a function is given activations by the feature's "
            f"name, so write {name!r} as the key, too, or {key!r} as the name"
        )
    return name


def _table(spec: Any, where: str) -> SpecifiedTable:
    name = _text(_field(spec, "name", where), f"{where}.name")
    combiner = _field(spec, "combiner", where)
    if combiner not in _COMBINERS:
        raise NotConvertible(
            f"{where}.combiner of table {name!r} is {combiner!r}; the service combines rows by "
            f"{', '.join(_COMBINERS)}"
        )
    if _optional(spec, "quantization_config") is not None:
        raise NotConvertible(
            f"{where}: table {name!r} has a quantization_config, by which SparseCores round its "
            "rows, and the service does not; leave it out, and quantize the rows of the bundle "
            f"by tables.{name}.dtype if they must be small"
        )
    return SpecifiedTable(
        name,
        _count(_field(spec, "vocabulary_size", where), f"{where}.vocabulary_size"),
        _count(_field(spec, "embedding_dim", where), f"{where}.embedding_dim"),
        cast(Combiner, combiner),
        _place(spec, where),
    )


def _place(spec: Any, where: str) -> PlaceInStack | None:
    """Returns where a table is in its stack; None if its stack is not known yet."""
    is_stacked = getattr(spec, "is_stacked", None)
    if callable(is_stacked) and not is_stacked():
        return None  # without a stack, reading the property is an error
    stack = _optional(spec, "stacked_table_spec")
    if stack is None:
        return None
    setting = _field(spec, "setting_in_stack", where)
    in_stack = f"{where}.setting_in_stack"
    stack_rows = _field(stack, "stack_vocab_size", f"{where}.stacked_table_spec")
    return PlaceInStack(
        _text(_field(setting, "stack_name", in_stack), f"{in_stack}.stack_name"),
        _count(stack_rows, f"{where}.stacked_table_spec.stack_vocab_size"),
        _count(_field(setting, "padded_vocab_size", in_stack), f"{in_stack}.padded_vocab_size"),
        int(_field(setting, "row_offset_in_shard", in_stack)),
        int(_field(setting, "shard_rotation", in_stack)),
    )


def _check_output(spec: Any, table: SpecifiedTable, where: str) -> None:
    """Checks that a feature's activations are whole vectors."""
    shape = _optional(spec, "output_shape")
    if shape is None:
        return
    sizes = tuple(shape)
    if len(sizes) != 2:
        raise NotConvertible(
            f"{where}.output_shape is {sizes}; SparseCores return one vector for each example, "
            "(batch, embedding_dim), or for each of its n ids, (batch * n, embedding_dim): write "
            "one of these, or look the rows up by jnp.take in the function"
        )
    if sizes[1] != table.dim:
        raise NotConvertible(
            f"{where}.output_shape is {sizes}, and table {table.name!r} has "
            f"embedding_dim={table.dim}; let both be the same"
        )


def _sizes(spec: Any, where: str) -> StatedSizes:
    """Returns the sizes that a specification states by its shapes: `input_shape`, (rows, ids of
    one), where the second is left out for any number of ids; and `output_shape`, (rows, dim).
    """
    taken = tuple(_optional(spec, "input_shape") or ())
    activations = tuple(_optional(spec, "output_shape") or ())
    rows = {_size(shape[0]) for shape in (taken, activations) if shape} - {None}
    if len(rows) > 1:
        raise NotConvertible(
            f"{where} has input_shape {taken} and output_shape {activations}; both begin with the "
            "number of activations in a batch: write those of training"
        )
    ids = _size(taken[1]) if len(taken) == 2 else None
    return StatedSizes(rows.pop() if rows else None, ids)


def _size(value: Any) -> int | None:
    """Returns a size of a shape; None where it is open, such as None or -1."""
    return int(value) if isinstance(value, Integral) and int(value) > 0 else None


def _field(holder: Any, name: str, where: str) -> Any:
    found = _optional(holder, name)
    if found is None:
        raise NotConvertible(f"{where} has no {name!r}; {_FORM}")
    return found


def _optional(holder: Any, name: str) -> Any:
    return holder.get(name) if isinstance(holder, Mapping) else getattr(holder, name, None)


def _text(value: Any, where: str) -> str:
    if not isinstance(value, str) or not value:
        raise NotConvertible(f"{where} is {value!r}; a name was expected")
    return value


def _count(value: Any, where: str) -> int:
    if isinstance(value, bool) or not isinstance(value, Integral) or value < 1:
        raise NotConvertible(f"{where} is {value!r}; an integer of at least 1 was expected")
    return int(value)
