"""Calls that change candidates and contexts while they are served. Generated from
service/contract/changes.py; see scripts/change_calls.py.

A service makes them for the clients that its setting `changes_from` names. When a call returns, the
change is on the disk and served by the process that responded; the others follow within
milliseconds.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Unpack

from numpy.typing import ArrayLike

from rowcast_client.calls import Call
from rowcast_client.changes import ChangeOptions, Values, change
from rowcast_client.columns import Features
from rowcast_client.model_details import ChangeResult


def upsert_candidates(
    ids: Values,
    features: Features | None = None,
    *,
    attributes: Mapping[str, Values] | None = None,
    vectors: Mapping[str, ArrayLike] | None = None,
    expires_s: Values | None = None,
    corpus: str = "",
    **options: Unpack[ChangeOptions],
) -> Call[ChangeResult]:
    """Adds candidates, or replaces those with the same ids.

    Args:
      ids: The ids of the m candidates.
      features: One value of each, by the name of the feature.
      attributes: One value of each, by the name of the attribute; None stands for no value.
      vectors: [m, dim] by index, instead of those that the candidate tower computes.
      expires_s: The time when each expires, in Unix seconds; None: never.
      corpus: The name of the corpus; the only one if left out.
      options: Options such as model, sequences and stream: see ChangeOptions.

    Raises:
      InvalidArgument: A value cannot be sent; the service's own errors are raised as
        `errors.py` lists them.
    """
    return change(
        "candidates",
        "upsert",
        ids,
        features=features,
        attributes=attributes,
        vectors=vectors,
        expires_s=expires_s,
        target=corpus,
        **options,
    )


def delete_candidates(
    ids: Values,
    *,
    corpus: str = "",
    **options: Unpack[ChangeOptions],
) -> Call[ChangeResult]:
    """Deletes candidates.

    Args:
      ids: The ids of the m candidates.
      corpus: The name of the corpus; the only one if left out.
      options: Options such as model, sequences and stream: see ChangeOptions.

    Raises:
      InvalidArgument: A value cannot be sent; the service's own errors are raised as
        `errors.py` lists them.
    """
    return change(
        "candidates",
        "delete",
        ids,
        target=corpus,
        **options,
    )


def set_candidate_attributes(
    ids: Values,
    attributes: Mapping[str, Values],
    *,
    corpus: str = "",
    **options: Unpack[ChangeOptions],
) -> Call[ChangeResult]:
    """Changes some attributes of candidates.

    Args:
      ids: The ids of the m candidates.
      attributes: One value of each, by the name of the attribute; None stands for no value.
      corpus: The name of the corpus; the only one if left out.
      options: Options such as model, sequences and stream: see ChangeOptions.

    Raises:
      InvalidArgument: A value cannot be sent; the service's own errors are raised as
        `errors.py` lists them.
    """
    return change(
        "candidates",
        "attributes",
        ids,
        attributes=attributes,
        target=corpus,
        **options,
    )


def upsert_contexts(
    ids: Values,
    features: Features | None = None,
    *,
    attributes: Mapping[str, Values] | None = None,
    store: str = "",
    **options: Unpack[ChangeOptions],
) -> Call[ChangeResult]:
    """Adds contexts, or replaces those with the same ids.

    Args:
      ids: The ids of the m contexts.
      features: One value of each, by the name of the feature.
      attributes: One value of each, by the name of the attribute; None stands for no value.
      store: The name of the context store; the only one if left out.
      options: Options such as model, sequences and stream: see ChangeOptions.

    Raises:
      InvalidArgument: A value cannot be sent; the service's own errors are raised as
        `errors.py` lists them.
    """
    return change(
        "contexts",
        "upsert",
        ids,
        features=features,
        attributes=attributes,
        target=store,
        **options,
    )


def delete_contexts(
    ids: Values,
    *,
    store: str = "",
    **options: Unpack[ChangeOptions],
) -> Call[ChangeResult]:
    """Deletes contexts.

    Args:
      ids: The ids of the m contexts.
      store: The name of the context store; the only one if left out.
      options: Options such as model, sequences and stream: see ChangeOptions.

    Raises:
      InvalidArgument: A value cannot be sent; the service's own errors are raised as
        `errors.py` lists them.
    """
    return change(
        "contexts",
        "delete",
        ids,
        target=store,
        **options,
    )


def set_context_attributes(
    ids: Values,
    attributes: Mapping[str, Values],
    *,
    store: str = "",
    **options: Unpack[ChangeOptions],
) -> Call[ChangeResult]:
    """Changes some attributes of contexts.

    Args:
      ids: The ids of the m contexts.
      attributes: One value of each, by the name of the attribute; None stands for no value.
      store: The name of the context store; the only one if left out.
      options: Options such as model, sequences and stream: see ChangeOptions.

    Raises:
      InvalidArgument: A value cannot be sent; the service's own errors are raised as
        `errors.py` lists them.
    """
    return change(
        "contexts",
        "attributes",
        ids,
        attributes=attributes,
        target=store,
        **options,
    )
