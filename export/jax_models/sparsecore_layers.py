"""Lets `SparseCoreEmbed` of jax-tpu-embedding return activations that it is given, while a model
that calls the layer is built and traced: off TPUs the layer can be neither made nor called.

Source: jax-tpu-embedding 0.1.0, sparsecore/lib/flax/linen/embed.py and nnx/embed.py.
"""

from __future__ import annotations

import sys
import traceback
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
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
from export.tensorflow_models.frameworks.hooks import Answer, HookPoint, Hooks

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

_CORES = 2
"""SparseCores that a layer sees on this machine: a number that one generation of TPUs has, which
only sizes tables that no lookup reads.
"""
ActivationOf = Callable[[Any], Any]
"""(a feature specification of the layer) -> its activation, [batch, dim] float32."""


def build_with_layers(factory: Callable[[], Any]) -> Any:
    """Returns what a factory returns, while layers return zeros of the shapes that their
    specifications state: enough for `model.init`.
    """
    was_imported = _PACKAGE in sys.modules
    try:
        with _layers_replaced(_zeros):
            return factory()
    except NotConvertible:
        if was_imported or _PACKAGE not in sys.modules:
            raise
    # The factory itself imported the layers, which nothing replaced then.
    with _layers_replaced(_zeros):
        return factory()


def _zeros(layer: Any) -> Any:
    def zeros(spec: Any) -> Any:
        return jax.numpy.zeros(tuple(spec.output_shape), jax.numpy.float32)

    return _answers(layer, zeros)


@contextmanager
def layers_given(specs: FeatureSpecs | None, inputs: Mapping[str, Any]) -> Iterator[None]:
    """Lets layers return activations inside the `with` block.

    Args:
      specs: what the factory returned.
      inputs: what the function is given; activations by the names of the features.

    Raises:
      NotConvertible: a layer has other specifications than the factory returned, or its feature is
        no input.
    """

    def answer(layer: Any) -> Any:
        _check_specs(layer.feature_specs, specs)
        return _answers(layer, given)

    def given(spec: Any) -> Any:
        if spec.name not in inputs:
            raise NotConvertible(
                f"SparseCoreEmbed looks up feature {spec.name!r}, which is no input of the call; "
                f'declare it, inputs.{spec.name} = {{ dtype = "int32", kind = "ragged" }}, and '
                "name it in the tower's inputs, if it has some"
            )
        return inputs[spec.name]

    with _layers_replaced(answer):
        yield


def _answers(layer: Any, activation_of: ActivationOf) -> Any:
    """Returns activations in the structure of the layer's specifications, as the layer does."""
    return jax.tree.map(activation_of, layer.feature_specs, is_leaf=is_spec)


@contextmanager
def _layers_replaced(answer: Callable[[Any], Any]) -> Iterator[None]:
    """Replaces the construction and the calls of layers inside the `with` block.

    Raises:
      NotConvertible: the layer raises, since this release of jax-tpu-embedding has moved what is
        replaced. A model without the layer does not need it.
    """

    def constructed(original: Callable[..., Any], *arguments: Any, **how: Any) -> Any:
        with Hooks() as inside:
            inside.replace(CORES, lambda _original, **_device: _CORES)
            return original(*arguments, **how)

    def called(_original: Callable[..., Any], layer: Any, *_inputs: Any, **_how: Any) -> Any:
        return answer(layer)

    with Hooks() as hooks:
        moved: list[NotConvertible] = []
        replacements: dict[HookPoint, Answer] = dict.fromkeys(CONSTRUCTORS, constructed)
        replacements |= dict.fromkeys(CALLS, called)
        for point, replacement in replacements.items():
            try:
                hooks.replace(point, replacement)
            except NotConvertible as problem:
                moved.append(problem)
        try:
            yield
        except Exception as problem:
            if moved and _is_of_library(problem):
                raise moved[0] from problem
            raise


def _is_of_library(problem: BaseException) -> bool:
    """Returns whether an exception, or what caused it, was raised in jax-tpu-embedding."""
    frames = traceback.extract_tb(problem.__traceback__)
    if any(_FOLDER in Path(frame.filename).as_posix() for frame in frames):
        return True
    return problem.__cause__ is not None and _is_of_library(problem.__cause__)


def _check_specs(own: Any, specs: FeatureSpecs | None) -> None:
    if specs is None:
        raise NotConvertible(
            "the model calls SparseCoreEmbed, and the factory returned no feature_specs: return "
            "those of the layer as a third, `shapes, {name: function}, feature_specs`"
        )
    for name, table in read_feature_specs(own).table_of.items():
        returned = specs.table_of.get(name)
        if returned is None:
            known = ", ".join(sorted(specs.table_of))
            raise NotConvertible(
                f"SparseCoreEmbed looks up feature {name!r}, and the factory returned the "
                f"specifications of {known}; let it return those of the layer"
            )
        contradiction = _contradiction(table, returned)
        if contradiction:
            raise NotConvertible(
                f"the table of feature {name!r} differs between SparseCoreEmbed and feature_specs: "
                f"{contradiction}; let the factory return the specifications of the layer"
            )


def _contradiction(own: SpecifiedTable, returned: SpecifiedTable) -> str:
    if own.place is not None and returned.place is not None:
        return differences(own, returned)
    # Only one of them is prepared for training, and so has a place in a stack.
    return differences(replace(own, place=None), replace(returned, place=None))
