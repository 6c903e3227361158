"""Lets lookups of jax-tpu-embedding return activations that they are given, while a model that
makes them is built and traced: off TPUs they can be neither prepared nor made.

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
from export.jax_models.feature_specs import (
    FeatureSpecs,
    SpecifiedTable,
    differences,
    is_spec,
    read_feature_specs,
)
from export.jax_models.loading import jax
from export.tensorflow_models.frameworks.hooks import HookPoint, Hooks, Replacement
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
"""SparseCores that a layer sees on this machine: a number that one generation of TPUs has, which
only sizes tables that no lookup reads.
"""
_LAYER = "SparseCoreEmbed"
ActivationOf = Callable[[Any], Any]
"""(a feature specification) -> its activation, [rows, dim] float32."""
LookUp = Callable[[Any, str], Any]
"""(feature specifications, who looks them up) -> activations in the structure of these."""


def build_with_layers(factory: Callable[[], Any]) -> Any:
    """Returns what a factory returns, while lookups return zeros of the shapes that their
    specifications state: enough for `model.init`.
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
def layers_given(specs: FeatureSpecs | None, inputs: Mapping[str, Any]) -> Iterator[None]:
    """Lets lookups return activations inside the `with` block.

    Args:
      specs: what the factory returned.
      inputs: what the function is given; activations by the names of the features.

    Raises:
      NotConvertible: a lookup has other specifications than the factory returned, or its feature is
        no input.
    """

    def look_up(tree: Any, caller: str) -> Any:
        _check_specs(tree, specs, caller)

        def given(spec: Any) -> Any:
            if spec.name not in inputs:
                raise NotConvertible(
                    f"{caller} looks up feature {spec.name!r}, which is no input of the call; "
                    f'declare it, inputs.{spec.name} = {{ dtype = "int32", kind = "ragged" }}, and '
                    "name it in the tower's inputs, if it has some"
                )
            return inputs[spec.name]

        return _activations(tree, given)

    with _lookups_replaced(look_up):
        yield


def _activations(tree: Any, activation_of: ActivationOf) -> Any:
    """Returns activations in the structure of their specifications, as SparseCores do."""
    return jax.tree.map(activation_of, tree, is_leaf=is_spec)


@contextmanager
def _lookups_replaced(look_up: LookUp) -> Iterator[None]:
    """Replaces the construction of layers, and lookups, inside the `with` block.

    Raises:
      NotConvertible: a layer raises, since this release of jax-tpu-embedding has moved what is
        replaced. A model without the layer does not need it.
    """

    def constructed(original: Callable[..., Any], *arguments: Any, **how: Any) -> Any:
        with Hooks() as inside:
            inside.replace(CORES, lambda _original, **_device: _CORES)
            return original(*arguments, **how)

    def called(_original: Callable[..., Any], layer: Any, *_inputs: Any, **_how: Any) -> Any:
        return look_up(layer.feature_specs, _LAYER)

    def looked_up(_original: Callable[..., Any], *, feature_specs: Any, **how: Any) -> Any:
        if not how.get("perform_unstacking", True):
            raise NotConvertible(
                f"{LOOKUP.name} is called with perform_unstacking=False, so that it returns the "
                "activations of whole stacks; leave it out, and take the activation of each feature"
            )
        return look_up(feature_specs, LOOKUP.name)

    with Hooks() as hooks:
        moved: list[NotConvertible] = []
        replacements: dict[HookPoint, Replacement] = dict.fromkeys(CONSTRUCTORS, constructed)
        replacements |= dict.fromkeys(CALLS, called)
        replacements[LOOKUP] = looked_up
        for point, replacement in replacements.items():
            try:
                hooks.replace(point, replacement)
            except NotConvertible as problem:
                moved.append(problem)
        if not moved:  # a constructor that was moved would read the number, too
            with suppress(NotConvertible):  # who constructs a layer learns that it was moved
                hooks.replace(CORES, _cores)
        try:
            yield
        except Exception as problem:
            if moved and _is_of_library(problem):
                raise moved[0] from problem
            raise


def _cores(original: Callable[..., Any], *, device: Any) -> Any:
    """Returns how many SparseCores a device has.

    Raises:
      NotConvertible: it has none, and the caller is no layer of the library.
    """
    try:
        return original(device)
    except ValueError as problem:
        raise NotConvertible(
            "the model reads how many SparseCores a device has, and this machine has none "
            f"({problem}): give it the number of a device of training, such as num_sc_per_device=4"
        ) from problem


def _is_of_library(problem: BaseException) -> bool:
    """Returns whether an exception, or what caused it, was raised in jax-tpu-embedding."""
    return any(
        _FOLDER in Path(frame.filename).as_posix()
        for cause in causes(problem)
        for frame in traceback.extract_tb(cause.__traceback__)
    )


def _check_specs(tree: Any, specs: FeatureSpecs | None, caller: str) -> None:
    """Checks that what a lookup reads is what the factory returned.

    Args:
      tree: the specifications of the lookup.
      specs: what the factory returned.
      caller: who looks up, for messages.
    """
    if specs is None:
        raise NotConvertible(
            f"the model calls {caller}, and the factory returned no feature_specs: return the "
            "model's as a third, `shapes, {name: function}, feature_specs`"
        )
    for name, table in read_feature_specs(tree).table_of.items():
        returned = specs.table_of.get(name)
        if returned is None:
            known = ", ".join(sorted(specs.table_of))
            raise NotConvertible(
                f"{caller} looks up feature {name!r}, and the factory returned the "
                f"specifications of {known}; let it return those that the model looks up"
            )
        contradiction = _contradiction(table, returned)
        if contradiction:
            raise NotConvertible(
                f"the table of feature {name!r} differs between {caller} and feature_specs: "
                f"{contradiction}; let the factory return the specifications that the model looks "
                "up"
            )


def _contradiction(own: SpecifiedTable, returned: SpecifiedTable) -> str:
    if own.place is not None and returned.place is not None:
        return differences(own, returned)
    # Only one of them is prepared for training, and so has a place in a stack.
    return differences(replace(own, place=None), replace(returned, place=None))
