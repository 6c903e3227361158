"""Constructs the models of HERec, which are modules of Flax."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp

from rowcast.model_code import definitions

MODELS = Path(__file__).parent / "HERec/herec/model"
USERS = 611
MOVIES = 9_743
DIM = 16


def neumf_module() -> Any:
    """Returns a NeuMF."""
    return definitions(MODELS / "NeuMF.py").NeuMF(USERS, MOVIES, DIM)


def protomf_module() -> Any:
    """Returns a ProtoMF, which compares users and movies with prototypes."""
    published = definitions(MODELS / "ProtoMF.py")
    return published.ProtoMF(USERS, MOVIES, 20, 30, DIM, lam1=0.1, lam2=0.1, lam3=0.1, lam4=0.1)


def neumf() -> Any:
    """Returns the shapes of the parameters of a NeuMF, and its function."""
    return shapes_and_function(neumf_module())


def protomf() -> Any:
    """Returns the shapes of the parameters of a ProtoMF, and its function."""
    return shapes_and_function(protomf_module())


def shapes_and_function(module: Any) -> Any:
    """Returns the shapes of the parameters of a module, and a function that scores pairs.

    The module takes users and movies in one matrix, in which the loader of HERec joins them.
    """
    shapes = jax.eval_shape(module.init, jax.random.key(0), jnp.zeros((1, 2), jnp.int32))

    def score(parameters: Any, inputs: Any) -> Any:
        return module.apply(parameters, jnp.stack([inputs["user"], inputs["movie"]], axis=1))

    return shapes, score
