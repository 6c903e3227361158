"""What the client of a request reads that failed because of the values that it sent."""

from __future__ import annotations

from collections.abc import Mapping

from bundle.errors import BundleError, FeatureError, RowUnavailable, UnknownCandidate
from bundle.features.columns import Column
from bundle.format.manifest import DenseFeature, Manifest, inputs_of
from runtime.errors import ComputationFailed
from service.contract.layouts import layout_of
from service.contract.messages import (
    EmbeddingRequest,
    LookupRequest,
    RankingRequest,
    Request,
)
from service.engine.validation import NotFinite, choose_ranking_tower
from service.errors import DataLoss, FieldViolation, InvalidArgument, NotReady, ServiceError
from service.versions.version import ModelVersion

_UNMASKED_LISTS = "lists with at least one id that the model does not mask"


def error_of(problem: BundleError, request: Request, version: ModelVersion) -> ServiceError:
    """Returns what the client of a request reads that failed because of the bundle or its ids."""
    if isinstance(problem, RowUnavailable):
        field = _path_of(request, problem.feature, version)
        violation = FieldViolation(field, problem.value, "an id whose row can be read")
        return NotReady(str(problem), violation)
    if isinstance(problem, FeatureError):
        field = _path_of(request, problem.feature, version)
        return InvalidArgument.of_misfit(field, problem)
    if isinstance(problem, UnknownCandidate):
        return InvalidArgument.of_misfit(problem.field, problem)
    return DataLoss(str(problem))


def numbers_at_fault(
    problem: Exception, request: Request, manifest: Manifest
) -> InvalidArgument | None:
    """Returns what is wrong with the numbers of a request; None: a failure is not their fault."""
    # Ids alone always have finite rows, or a row at fault that has been found before.
    if not _sends_numbers(manifest, request):
        return None
    if isinstance(problem, NotFinite):
        value = f"values with which {problem} is not finite"
        expected = f"a request of smaller numbers, and of {_UNMASKED_LISTS}"
    elif isinstance(problem, ComputationFailed):
        value = "values with which a tower cannot compute"
        expected = (
            "a request of ids within the tables that the tower reads itself, and of "
            f"{_UNMASKED_LISTS}"
        )
    else:
        return None
    return InvalidArgument.of_field("request", value, expected, "has")


def _sends_numbers(manifest: Manifest, request: Request) -> bool:
    """Returns whether a request sends numbers to compute with: vectors, weights or values of dense
    features.
    """
    if request.holds_vectors:
        return True
    for columns in vars(request).values():
        if not isinstance(columns, Mapping):
            continue
        for name, column in columns.items():
            if not isinstance(column, Column):
                continue
            readers = manifest.inputs.get(name, ())
            # An input may be read by several features, some of them dense.
            dense = any(isinstance(manifest.features[reader], DenseFeature) for reader in readers)
            if dense or column.weights is not None:
                return True
    return False


def _path_of(request: Request, name: str, model_version: ModelVersion) -> str:
    """Returns the path of what a request sends of a feature, or would have to send.

    Args:
      request: The request.
      name: The name of a feature, or of one of its inputs.
      model_version: What the request is for.
    """
    if isinstance(request, LookupRequest):
        return "ids"
    manifest = model_version.manifest
    inputs = [name]
    if name in manifest.features:
        inputs += inputs_of(name, manifest.features[name])
    for field in layout_of(type(request)).tables:
        columns = getattr(request, field) or {}
        for input_name in inputs:
            if input_name in columns:
                return f"{field}.{input_name}"
    if isinstance(request, EmbeddingRequest):
        return f"features.{name}"
    if isinstance(request, RankingRequest):
        _, tower = choose_ranking_tower(model_version, request.tower)
        # The request sends none of its inputs: the path is that of what it would have to send.
        if tower.by_role["context"].keys().isdisjoint(inputs):
            return f"candidate_features.{name}"
    return f"context.{name}"
