"""Constructs the model of PAIR's jax-recommenders, which is a module of Flax."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp

from rowcast.model_code import definitions

FILE = Path(__file__).parent / "jax-recommenders/recommenders/cfdnn/model_cfdnn.py"


def cf_dnn_module() -> Any:
    """Returns a CfDnn."""
    return definitions(FILE).CfDnn(num_items=9_743, num_users=611, repr_size=16, layers=[32, 16])


def cf_dnn() -> Any:
    """Returns the shapes of the parameters of a CfDnn, and its function."""
    module = cf_dnn_module()
    batch = dict.fromkeys(("item_id", "user_id"), jnp.zeros(1, jnp.int32))
    return jax.eval_shape(module.init, jax.random.key(0), batch), module.apply
