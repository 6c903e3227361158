"""Features as far as a recipe alone describes them: what clients send for each input.

The values that a user writes by hand, in defaults, pads and corpora, are compared with these before
a model is built. Only the model knows what it reads an input for, so each rule here is the loosest
one that the inputs of the recipe allow.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from bundle.format import manifest
from bundle.format.graph_builder import GraphBuilder
from bundle.format.id_graphs import InputDtype
from export.recipe import schema

_PADS: Mapping[InputDtype, int | str] = {"int64": -1, "int64_or_string": -1, "string": ""}
"""The values with which feature columns of TensorFlow pad ids."""


def stated_dtype(name: str, job: schema.ExportJob) -> InputDtype:
    """Returns the type of the values that clients send for an input: the type that the recipe's
    rule of ids reads, or else the type of the input.
    """
    rule = job.features.get(name, schema.FeatureSection()).ids
    if isinstance(rule, schema.VocabularyRule) and rule.vocabulary in job.vocabularies:
        return job.vocabularies[rule.vocabulary].dtype
    if isinstance(rule, schema.HashRule):
        return "int64_or_string"
    if isinstance(rule, schema.BucketRule):
        return "float32"
    dtype = job.inputs[name].sent_dtype
    if dtype == "int32":
        # An input of ids takes every int64, also where the model's tensor is narrower.
        return "int64"
    return dtype


def stated_features(job: schema.ExportJob) -> dict[str, manifest.Feature]:
    """Returns a feature for each input of a recipe that clients send by its own name."""
    weighted = {section.weights_for for section in job.inputs.values()}
    return {
        name: _stated_feature(name, job, is_weighted=name in weighted)
        for name, section in job.inputs.items()
        if section.weights_for is None
    }


def _stated_feature(name: str, job: schema.ExportJob, *, is_weighted: bool) -> manifest.Feature:
    section = job.inputs[name]
    dtype = stated_dtype(name, job)
    size = math.prod(section.shape)
    default = job.features.get(name, schema.FeatureSection()).default
    is_list = section.kind != "dense" or size > 1 or is_weighted
    length = None
    if section.kind == "dense" and size > 1:
        length = _stated_length(section, dtype, size)
    if length is not None and dtype == "float32":
        return manifest.DenseFeature(
            kind="dense",
            role="context",
            shape=section.shape,
            default=default,
            input_length=length,
        )
    kind: dict[str, Any] = {"kind": "single"}
    if is_list:
        kind = {"kind": "bag", "combiner": "sum"}
    # An indicator needs no table, so that the values alone are read.
    return manifest.EmbeddedFeature(
        **kind,
        table="",
        indicator=1,
        role="context",
        ids=_any_row(dtype),
        weighted=is_weighted,
        default=default,
        input_length=length,
    )


def _stated_length(
    section: schema.InputSection, dtype: InputDtype, size: int
) -> manifest.InputLength:
    pad: Any = section.pad
    if pad is None and dtype != "float32":
        # Feature columns of TensorFlow pad ids themselves, which the recipe does not show.
        pad = _PADS[dtype]
    return manifest.InputLength(values=size, pad=pad, pad_side=section.pad_side, keep=section.keep)


def _any_row(dtype: InputDtype) -> manifest.IdRule:
    """Returns a rule that makes a row of every value of a type."""
    builder = GraphBuilder(dtype)
    if dtype == "float32":
        builder.buckets(builder.last, (0.0,))
    elif dtype in ("string", "int64_or_string"):
        builder.hashed(builder.last, 1)
    return builder.graph()
