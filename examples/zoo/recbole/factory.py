"""Constructs models of RecBole with its default properties, and describes their files."""

from __future__ import annotations

from importlib import import_module
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import yaml

PROPERTIES = Path(__file__).parent / "RecBole/recbole/properties/model"
MOVIES = 9_743
FIELDS = {
    "USER_ID_FIELD": "user_id",
    "ITEM_ID_FIELD": "item_id",
    "LIST_SUFFIX": "_list",
    "ITEM_LIST_LENGTH_FIELD": "item_length",
    "NEG_PREFIX": "neg_",
    "MAX_ITEM_LIST_LENGTH": 20,
    "device": "cpu",
}


def model(class_name: str) -> Any:
    """Returns a sequential recommender by the name of its class."""
    module = import_module(f"recbole.model.sequential_recommender.{class_name.lower()}")
    text = (PROPERTIES / f"{class_name}.yaml").read_text(encoding="utf-8")
    # YAML 1.1 reads 1e-12 as text.
    properties = yaml.safe_load(text.replace("1e-12", "1.0e-12"))
    dataset = SimpleNamespace(num=lambda _: MOVIES)
    return getattr(module, class_name)({**FIELDS, **properties}, dataset)


def sasrec() -> Any:
    """Returns no tables, since the module looks up itself, and the file of the module."""
    return [], {"": "sasrec.npz"}


def gru4rec() -> Any:
    """Returns no tables, since the module looks up itself, and the file of the module."""
    return [], {"": "gru4rec.npz"}
