"""Feature specifications of jax-tpu-embedding, as a model file returns them: the table that each
feature reads, and the combiner of its rows.

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
from export.partition.lookups.activations import PooledTable, StatedSizes

_COMBINERS = get_args(Combiner)
_FORM = (
    "a specification has `name` and `table_spec`, which has `name`, `vocabulary_size`, "
    "`embedding_dim` and `combiner`: a FeatureSpec of jax-tpu-embedding, or a dict with these keys"
)


@dataclass(frozen=True)
class StackPosition:
    """The position of a table in a stack, as jax-tpu-embedding computed it for the devices of
    training.

    Attributes:
      stack: The name of the stack.
      stack_rows: Number of rows of the stack.
      padded_rows: Number of rows that the stack has for this table.
      offset: The table's first row on each SparseCore.
      rotation: Number of SparseCores that all rows are moved by: row 0 is on this SparseCore.
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
      stack_position: The table's position in its stack; None if the specifications are not prepared
        for training.
    """

    stack_position: StackPosition | None = None


@dataclass(frozen=True)
class FeatureSpecs:
    """The feature specifications of a model.

    Attributes:
      tree: The specifications in the structure that the model file returned.
      table_of: The table that each feature reads, by the feature's name.
      sizes_of: The sizes that each feature's specification states, by the feature's name.
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
      NotConvertible: Something else is among the specifications, a field is missing or wrong, or
        two specifications contradict each other; the message names both.
    """
    table_of: dict[str, SpecifiedTable] = {}
    sizes_of: dict[str, StatedSizes] = {}
    # The first description of each table, and the path of its specification.
    described: dict[str, tuple[str, SpecifiedTable]] = {}
    for path, key, spec in _leaves(tree, "feature_specs", ""):
        feature = _feature_name(spec, path, key)
        if feature in table_of:
            raise NotConvertible(
                f"{path}: another feature specification is called {feature!r}, too; "
                "activations are found by name: give each feature its own"
            )
        table = _table(_field(spec, "table_spec", path), f"{path}.table_spec")
        first_path, first = described.setdefault(table.name, (path, table))
        if first != table:
            raise NotConvertible(
                f"{first_path} and {path} describe table {table.name!r} differently: "
                f"{differences(first, table)}; let both have the same table_spec"
            )
        _check_output(spec, table, path)
        table_of[feature] = table
        sizes_of[feature] = _sizes(spec, path)
    if not table_of:
        raise NotConvertible(
            "the factory returned no feature specification with its functions; leave "
            f"feature_specs out, or fill it: {_FORM}"
        )
    return FeatureSpecs(tree, table_of, sizes_of)


def differences(first: SpecifiedTable, second: SpecifiedTable) -> str:
    """Returns the differences between two descriptions of a table, as part of a sentence; "" if
    there are none.
    """
    compared = (
        ("its name", first.name, second.name),
        ("vocabulary_size", first.rows, second.rows),
        ("embedding_dim", first.dim, second.dim),
        ("combiner", first.combiner, second.combiner),
        ("the position in its stack", first.stack_position, second.stack_position),
    )
    return ", ".join(
        f"{field} {first_value!r} and {second_value!r}"
        for field, first_value, second_value in compared
        if first_value != second_value
    )


def is_spec(node: Any) -> bool:
    """Returns whether a node of a tree is a specification, and not a branch."""
    # By its fields alone: this machine needs no jax-tpu-embedding.
    if isinstance(node, Mapping):
        return "table_spec" in node
    return hasattr(node, "table_spec")


def _leaves(node: Any, path: str, key: str) -> Iterator[tuple[str, str, Any]]:
    """Yields each specification with its path in the tree, and its key if the tree is flat."""
    if is_spec(node):
        yield path, key, node
    elif isinstance(node, Mapping):
        # A key of an inner mapping may be repeated, so that it does not name a feature.
        is_flat = path == "feature_specs"
        for name, child in node.items():
            yield from _leaves(child, f"{path}[{name!r}]", str(name) if is_flat else "")
    elif isinstance(node, list | tuple):
        for position, child in enumerate(node):
            yield from _leaves(child, f"{path}[{position}]", "")
    else:
        raise NotConvertible(f"{path} is a {type(node).__name__}; {_FORM}")


def _feature_name(spec: Any, path: str, key: str) -> str:
    if key and _optional(spec, "name") is None:
        return key
    name = _text(_field(spec, "name", path), f"{path}.name")
    if key and key != name:
        raise NotConvertible(
            f"{path} has the name {name!r}: a function gets activations by the feature's name, so "
            f"write {name!r} as the key, too, or {key!r} as the name"
        )
    return name


def _table(spec: Any, path: str) -> SpecifiedTable:
    name = _text(_field(spec, "name", path), f"{path}.name")
    combiner = _field(spec, "combiner", path)
    if combiner not in _COMBINERS:
        raise NotConvertible(
            f"{path}.combiner of table {name!r} is {combiner!r}; the service combines rows by "
            f"{', '.join(_COMBINERS)}"
        )
    if _optional(spec, "quantization_config") is not None:
        raise NotConvertible(
            f"{path}: table {name!r} has a quantization_config, by which SparseCores round its "
            "rows, and the service does not; leave it out, and quantize the rows of the bundle "
            f"by tables.{name}.dtype if they must be small"
        )
    return SpecifiedTable(
        name,
        _count(_field(spec, "vocabulary_size", path), f"{path}.vocabulary_size"),
        _count(_field(spec, "embedding_dim", path), f"{path}.embedding_dim"),
        cast(Combiner, combiner),
        _stack_position(spec, path),
    )


def _stack_position(spec: Any, path: str) -> StackPosition | None:
    """Returns the position of a table in its stack; None if it has no stack yet."""
    # Reading the property `stacked_table_spec` of a table without a stack is an error.
    is_stacked = getattr(spec, "is_stacked", None)
    if callable(is_stacked) and not is_stacked():
        return None
    stack = _optional(spec, "stacked_table_spec")
    if stack is None:
        return None
    setting = _field(spec, "setting_in_stack", path)
    in_stack = f"{path}.setting_in_stack"
    stack_rows = _field(stack, "stack_vocab_size", f"{path}.stacked_table_spec")
    return StackPosition(
        _text(_field(setting, "stack_name", in_stack), f"{in_stack}.stack_name"),
        _count(stack_rows, f"{path}.stacked_table_spec.stack_vocab_size"),
        _count(_field(setting, "padded_vocab_size", in_stack), f"{in_stack}.padded_vocab_size"),
        int(_field(setting, "row_offset_in_shard", in_stack)),
        int(_field(setting, "shard_rotation", in_stack)),
    )


def _check_output(spec: Any, table: SpecifiedTable, path: str) -> None:
    """Checks that a feature's activations are whole vectors."""
    shape = _optional(spec, "output_shape")
    if shape is None:
        return
    sizes = tuple(shape)
    if len(sizes) != 2:
        raise NotConvertible(
            f"{path}.output_shape is {sizes}; SparseCores return one vector for each example, "
            "(batch, embedding_dim), or for each of its n ids, (batch * n, embedding_dim): write "
            "one of these, or look the rows up by jnp.take in the function"
        )
    if sizes[1] != table.dim:
        raise NotConvertible(
            f"{path}.output_shape is {sizes}, and table {table.name!r} has "
            f"embedding_dim={table.dim}; let both be the same"
        )


def _sizes(spec: Any, path: str) -> StatedSizes:
    """Returns the sizes that a specification states by its shapes.

    They are `input_shape`, (rows, ids per row), whose second size is left out for any number of
    ids, and `output_shape`, (rows, dim).
    """
    input_shape = tuple(_optional(spec, "input_shape") or ())
    output_shape = tuple(_optional(spec, "output_shape") or ())
    rows = {_size(shape[0]) for shape in (input_shape, output_shape) if shape} - {None}
    if len(rows) > 1:
        raise NotConvertible(
            f"{path} has input_shape {input_shape} and output_shape {output_shape}; both begin "
            "with the number of activations in a batch: write those of training"
        )
    ids = _size(input_shape[1]) if len(input_shape) == 2 else None
    return StatedSizes(rows.pop() if rows else None, ids)


def _size(value: Any) -> int | None:
    """Returns a size of a shape; None if it is open, such as None or -1."""
    if isinstance(value, Integral) and int(value) > 0:
        return int(value)
    return None


def _field(holder: Any, name: str, path: str) -> Any:
    value = _optional(holder, name)
    if value is None:
        raise NotConvertible(f"{path} has no {name!r}; {_FORM}")
    return value


def _optional(holder: Any, name: str) -> Any:
    if isinstance(holder, Mapping):
        return holder.get(name)
    return getattr(holder, name, None)


def _text(value: Any, path: str) -> str:
    if not isinstance(value, str) or not value:
        raise NotConvertible(f"{path} is {value!r}; a name was expected")
    return value


def _count(value: Any, path: str) -> int:
    if isinstance(value, bool) or not isinstance(value, Integral) or value < 1:
        raise NotConvertible(f"{path} is {value!r}; an integer of at least 1 was expected")
    return int(value)
