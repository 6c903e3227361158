"""The metadata of an Orbax checkpoint and of the zarr arrays in it, as their writers write them.

Each model has all fields of the newest release that was read (`upstreams.ORBAX`, `TENSORSTORE`).

Source: Orbax, checkpoint/_src/metadata/{tree,step_metadata,array_metadata}.py; the specifications
of zarr 2 and 3.
"""

from __future__ import annotations

from typing import Any, Literal, Self

from pydantic import ConfigDict, Field, RootModel, model_validator

from export.checkpoint.formats.upstreams import Metadata, Sizes

SHARDS = "sharding_indexed"
"""The codec of arrays of which several chunks share a stored value."""


class StepMetadata(Metadata):
    """`_CHECKPOINT_METADATA`: how a step was saved, and nothing of its arrays. So its other fields
    are allowed.
    """

    model_config = ConfigDict(extra="allow")

    item_handlers: Any = None
    metrics: Any = None
    performance_metrics: Any = None
    init_timestamp_nsecs: int | None = None
    commit_timestamp_nsecs: int | None = None
    custom_metadata: Any = None


class Step(Metadata):
    """A step of the path to a leaf."""

    key: str | int
    key_type: int


class Value(Metadata):
    """The kind of a leaf. `write_shape` is the part of an array that one process wrote."""

    value_type: str
    skip_deserialize: bool = False
    write_shape: Sizes | None = None


class Leaf(Metadata):
    """A leaf of a tree."""

    key_metadata: list[Step]
    value_metadata: Value


class Tree(Metadata):
    """`_METADATA`: the leaves of an item, and how its arrays are stored."""

    tree_metadata: dict[str, Leaf]
    use_ocdbt: bool = True
    use_zarr3: bool = False
    store_array_data_equal_to_fill_value: bool = False
    custom_metadata: Any = None


class ExtendedMetadata(Metadata):
    """What a process recorded of arrays that are no numbers."""

    random_key_impl: str | None = None


class ArrayMetadata(Metadata):
    """What a process recorded of an array. The chunks are also in the metadata of the array."""

    param_name: str
    write_shape: Sizes
    chunk_shape: Sizes
    ext_metadata: ExtendedMetadata | None = None


class ProcessArray(Metadata):
    """An array of a process."""

    array_metadata: ArrayMetadata


class ProcessArrays(Metadata):
    """`array_metadatas/process_N`: the arrays that a process wrote."""

    array_metadatas: list[ProcessArray]


class Shardings(RootModel[dict[str, str]]):
    """`_sharding`: the sharding of each array, as JSON."""


class Sharding(Metadata):
    """How an array was sharded. Its rows lie in their order whatever the other fields say."""

    model_config = ConfigDict(extra="allow")

    sharding_type: str


class KerasStrings(Metadata):
    """The texts that Keras saves as an item of their own."""

    config: str


class Zarr2Array(Metadata):
    """`.zarray`: an array of zarr 2."""

    zarr_format: Literal[2]
    shape: Sizes
    chunks: Sizes
    dtype: str
    order: Literal["C", "F"]
    fill_value: Any
    compressor: Any
    filters: Any
    dimension_separator: Literal[".", "/"] = "."

    @property
    def attributes(self) -> dict[str, Any]:
        """The attributes of users, which zarr 2 has in a file of their own."""
        return {}

    @property
    def chunk_shape(self) -> list[int]:
        """The shape of a chunk, which is also what a stored value holds."""
        return self.chunks

    @property
    def stored_shape(self) -> list[int]:
        """The shape of what one stored value holds."""
        return self.chunks


class Configuration(Metadata):
    """How a codec is configured: tensorstore checks what it says besides."""

    model_config = ConfigDict(extra="allow")

    chunk_shape: Sizes | None = None


class Extension(Metadata):
    """A part of the metadata of zarr 3 that has a name and a configuration."""

    name: str
    configuration: Configuration = Configuration()

    @model_validator(mode="after")
    def _has_chunks(self) -> Self:
        if self.name == SHARDS and self.configuration.chunk_shape is None:
            raise ValueError("its 'configuration.chunk_shape' is missing")
        return self


class GridConfiguration(Metadata):
    """The shape of each chunk of a grid."""

    chunk_shape: Sizes


class Grid(Metadata):
    """The grid of the chunks of an array."""

    name: Literal["regular"]
    configuration: GridConfiguration


class Zarr3Array(Metadata):
    """`zarr.json`: an array of zarr 3."""

    zarr_format: Literal[3]
    node_type: Literal["array"]
    shape: Sizes
    data_type: str
    chunk_grid: Grid
    chunk_key_encoding: Extension
    fill_value: Any
    codecs: list[Extension]
    attributes: dict[str, Any] = Field(default_factory=dict)
    dimension_names: Any = None

    @property
    def chunk_shape(self) -> list[int]:
        """The shape of a chunk: the grid is that of shards if each of them holds several chunks."""
        for codec in self.codecs:
            if codec.name == SHARDS:
                return codec.configuration.chunk_shape or []
        return self.stored_shape

    @property
    def stored_shape(self) -> list[int]:
        """The shape of what one stored value holds."""
        return self.chunk_grid.configuration.chunk_shape
