"""Lets lookups of jax-tpu-embedding return activations that are inputs, while a model with such
lookups is built and traced: without a TPU they can be neither prepared nor run.

A model calls the layer `SparseCoreEmbed`, or the function that looks up, in a layer of its own.

Source: jax-tpu-embedding 0.1.0, sparsecore/lib/flax/linen/embed.py, nnx/embed.py and
lib/nn/embedding.py.
"""

from __future__ import annotations

import sys
import traceback
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

from export.errors import NotConvertible
from export.graphs.hooks import HookPoint, Hooks, Replacement
from export.jax_models.feature_specs import (
    FeatureSpecs,
    SpecifiedTable,
    differences,
    is_spec,
    read_feature_specs,
)
from export.jax_models.loading import jax
from export.user_lines import causes

_PACKAGE = "jax_tpu_embedding"
_LIBRARY = f"{_PACKAGE}.sparsecore"
_FOLDER = f"/{_PACKAGE}/sparsecore/"
_LINEN = f"{_LIBRARY}.lib.flax.linen.embed"
_NNX = f"{_LIBRARY}.lib.flax.nnx.embed"
CORES = HookPoint(f"{_LIBRARY}.utils.utils", "num_sparsecores_per_device", "device")
CONSTRUCTORS = (
    HookPoint(_LINEN, "SparseCoreEmbed.__post_init__"),
    HookPoint(_NNX, "SparseCoreEmbed.__init__", "feature_specs"),
)
CALLS = (
    HookPoint(_LINEN, "SparseCoreEmbed.__call__", "embedding_lookup_inputs"),
    HookPoint(_NNX, "SparseCoreEmbed.__call__", "embedding_lookup_inputs"),
)
LOOKUP = HookPoint(f"{_LIBRARY}.lib.nn.embedding", "tpu_sparse_dense_matmul", "feature_specs")

_CORES = 2
"""The number of SparseCores of a device that a layer sees on this machine, as one generation of
TPUs has them.
The number only sizes tables that no lookup reads.
"""
_LAYER = "SparseCoreEmbed"
ActivationOf = Callable[[Any], Any]
"""(a feature specification) -> its activation, [rows, dim] float32."""
LookUp = Callable[[Any, str], Any]
"""(feature specifications, name of the caller) -> activations in the structure of the
specifications.
"""


def build_with_layers(factory: Callable[[], Any]) -> Any:
    """Calls a factory while lookups return zeros of the shapes that their specifications state,
    which is enough for `model.init`.
    """
    was_imported = _PACKAGE in sys.modules
    try:
        with _lookups_replaced(_zeros):
            return factory()
    except NotConvertible:
        if was_imported or _PACKAGE not in sys.modules:
            raise
    # The factory itself imported the layers, which nothing replaced then.
    with _lookups_replaced(_zeros):
        return factory()


def _zeros(tree: Any, _caller: str) -> Any:
    def zeros(spec: Any) -> Any:
        return jax.numpy.zeros(tuple(spec.output_shape), jax.numpy.float32)

    return _activations(tree, zeros)


@contextmanager
def lookups_returning(specs: FeatureSpecs | None, inputs: Mapping[str, Any]) -> Iterator[None]:
    """Lets lookups return activations inside the `with` block.

    Args:
      specs: The specifications that the factory returned.
      inputs: The inputs of the function; activations by the names of the features.

    Raises:
      NotConvertible: A lookup has other specifications than the factory returned, or its feature is
        no input.
    """

    def look_up(tree: Any, caller: str) -> Any:
        _check_specs(tree, specs, caller)

        def activation(spec: Any) -> Any:
            if spec.name not in inputs:
                raise NotConvertible(
                    f"{caller} looks up feature {spec.name!r}, which is no input of the call; "
                    f'declare it, inputs.{spec.name} = {{ dtype = "int32", kind = "ragged" }}, and '
                    "name it in the tower's inputs, if it has some"
                )
            return inputs[spec.name]

        return _activations(tree, activation)

    with _lookups_replaced(look_up):
        yield


def _activations(tree: Any, activation_of: ActivationOf) -> Any:
    """Returns activations in the structure of their specifications, as SparseCores do."""
    return jax.tree.map(activation_of, tree, is_leaf=is_spec)


@contextmanager
def _lookups_replaced(look_up: LookUp) -> Iterator[None]:
    """Replaces the construction of layers, and lookups, inside the `with` block.

    Raises:
      NotConvertible: A layer raises an error because this release of jax-tpu-embedding has moved
        what is replaced. A model without the layer does not need it.
    """

    def construct_layer(original: Callable[..., Any], *arguments: Any, **options: Any) -> Any:
        # A layer asserts the number of SparseCores, which a machine without a TPU has not.
        with Hooks() as hooks:
            hooks.replace(CORES, lambda _original, **_device: _CORES)
            return original(*arguments, **options)

    def call_layer(
        _original: Callable[..., Any], layer: Any, *_inputs: Any, **_options: Any
    ) -> Any:
        return look_up(layer.feature_specs, _LAYER)

    def call_function(_original: Callable[..., Any], *, feature_specs: Any, **options: Any) -> Any:
        if not options.get("perform_unstacking", True):
            raise NotConvertible(
                f"{LOOKUP.name} is called with perform_unstacking=False, so that it returns the "
                "activations of whole stacks; leave it out, and read the activation of each feature"
            )
        return look_up(feature_specs, LOOKUP.name)

    with Hooks() as hooks:
        moved: list[NotConvertible] = []
        replacements: dict[HookPoint, Replacement] = dict.fromkeys(CONSTRUCTORS, construct_layer)
        replacements |= dict.fromkeys(CALLS, call_layer)
        replacements[LOOKUP] = call_function
        for point, replacement in replacements.items():
            try:
                hooks.replace(point, replacement)
            except NotConvertible as problem:
                moved.append(problem)

        # A constructor that was moved would read the number of SparseCores, too. If the number
        # itself was moved, the construction of a layer reports it.
        if not moved:
            with suppress(NotConvertible):
                hooks.replace(CORES, _cores)
        try:
            yield
        except Exception as problem:
            # Only an error of the library itself can come from what was moved.
            if moved and _is_of_library(problem):
                raise moved[0] from problem
            raise


def _cores(original: Callable[..., Any], *, device: Any) -> Any:
    """Returns the number of SparseCores of a device.

    Raises:
      NotConvertible: The device has none, and the caller is no layer of the library.
    """
    try:
        return original(device)
    except ValueError as problem:
        raise NotConvertible(
            "the model reads the number of SparseCores of a device, and this machine has none "
            f"({problem}): pass it the number of a device of training, such as num_sc_per_device=4"
        ) from problem


def _is_of_library(problem: BaseException) -> bool:
    """Returns whether an exception, or what caused it, was raised in jax-tpu-embedding."""
    return any(
        _FOLDER in Path(frame.filename).as_posix()
        for cause in causes(problem)
        for frame in traceback.extract_tb(cause.__traceback__)
    )


def _check_specs(tree: Any, specs: FeatureSpecs | None, caller: str) -> None:
    """Checks that the specifications of a lookup are those that the factory returned.

    Args:
      tree: The specifications of the lookup.
      specs: The specifications that the factory returned.
      caller: The name of the layer or function that looks up, for messages.
    """
    if specs is None:
        raise NotConvertible(
            f"the model calls {caller}, and the factory returned no feature_specs: return the "
            "model's as a third, `shapes, {name: function}, feature_specs`"
        )
    for name, table in read_feature_specs(tree).table_of.items():
        returned_table = specs.table_of.get(name)
        if returned_table is None:
            returned_names = ", ".join(sorted(specs.table_of))
            raise NotConvertible(
                f"{caller} looks up feature {name!r}, and the factory returned the "
                f"specifications of {returned_names}; let it return those that the model looks up"
            )
        contradiction = _contradiction(table, returned_table)
        if contradiction:
            raise NotConvertible(
                f"the table of feature {name!r} differs between {caller} and feature_specs: "
                f"{contradiction}; let the factory return the specifications that the model looks "
                "up"
            )


def _contradiction(lookup_table: SpecifiedTable, returned_table: SpecifiedTable) -> str:
    """Returns the differences between the table of a lookup and the one that the factory returned;
    "" if there are none.
    """
    if lookup_table.stack_position is None or returned_table.stack_position is None:
        # At most one of them is prepared for training, and so has a position in a stack.
        lookup_table = replace(lookup_table, stack_position=None)
        returned_table = replace(returned_table, stack_position=None)
    return differences(lookup_table, returned_table)
