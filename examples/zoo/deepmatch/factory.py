"""Constructs the models of DeepMatch as its examples do."""

from __future__ import annotations

import os
from typing import Any

os.environ.setdefault("TF_USE_LEGACY_KERAS", "1")  # before TensorFlow is imported

from deepmatch.models import NCF


def ncf() -> Any:
    """Returns an NCF."""
    return NCF({"user_id": 611, "user_gender": 2}, {"movie_id": 9_743})
