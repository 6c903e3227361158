"""The parameters of JAX's primitives: what a counterpart must know to compute the same.

Releases of JAX rename parameters, and add others. A name that is not here, or no longer in JAX, is
rejected rather than guessed.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from types import ModuleType
from typing import Any

from export.errors import NotConvertible
from export.jax_models.loading import jax, supported_releases
from export.user_lines import at_line

_MEANING = {
    "argmax": ("axes",),
    "argmin": ("axes",),
    "broadcast_in_dim": ("broadcast_dimensions", "shape"),
    "concatenate": ("dimension",),
    "cond": ("branches",),
    "conv_general_dilated": (
        "batch_group_count",
        "dimension_numbers",
        "feature_group_count",
        "lhs_dilation",
        "padding",
        "rhs_dilation",
        "window_strides",
    ),
    "convert_element_type": ("new_dtype",),
    "cumlogsumexp": ("axis", "reverse"),
    "cumprod": ("axis", "reverse"),
    "cumsum": ("axis", "reverse"),
    "custom_jvp_call": ("call_jaxpr", "num_consts"),
    "custom_vjp_call": ("call_jaxpr", "num_consts"),
    "dim_as_value": ("dim",),
    "dot_general": ("dimension_numbers",),
    "dynamic_slice": ("slice_sizes",),
    "gather": ("dimension_numbers", "fill_value", "mode", "slice_sizes"),
    "integer_pow": ("y",),
    "iota": ("dimension", "dtype", "shape"),
    "jit": ("jaxpr", "name"),
    "name": ("name",),
    "pad": ("padding_config",),
    "pvary": ("axes",),
    "reduce_and": ("axes",),
    "reduce_max": ("axes",),
    "reduce_min": ("axes",),
    "reduce_or": ("axes",),
    "reduce_precision": ("exponent_bits", "mantissa_bits"),
    "reduce_prod": ("axes",),
    "reduce_sum": ("axes",),
    "remat2": ("jaxpr",),
    "reshape": ("new_sizes",),
    "rev": ("dimensions",),
    "round": ("rounding_method",),
    "scan": ("ft_in", "ft_out", "jaxpr", "length", "num_carry", "num_consts", "reverse"),
    "scatter": ("dimension_numbers", "mode"),
    "scatter-add": ("dimension_numbers", "mode"),
    "shard_map": ("jaxpr", "mesh"),
    "slice": ("limit_indices", "start_indices", "strides"),
    "sort": ("dimension", "num_keys"),
    "split": ("axis", "sizes"),
    "squeeze": ("dimensions",),
    "stack": ("axis",),
    "tile": ("reps",),
    "top_k": ("axis", "k"),
    "transpose": ("permutation",),
    "unstack": ("axis",),
    "while": ("body_jaxpr", "body_nconsts", "cond_jaxpr", "cond_nconsts"),
}
"""Parameters that say what a primitive computes, by primitive, in any supported release."""

_WITHOUT_EFFECT = {
    # Precision, and the dtype of the results, which the results themselves have.
    *("accuracy", "index_dtype", "precision", "preferred_element_type", "weak_type"),
    # Promises about arguments, and orders of equal values: the counterparts hold for any.
    *("indices_are_sorted", "is_stable", "unique_indices", "update_consts", "update_jaxpr"),
    # Placement on devices.
    *("check_vma", "context_mesh", "ctx_mesh", "in_layouts", "in_shardings", "in_specs", "layout"),
    *("newly_manual_axes", "out_layouts", "out_sharding", "out_shardings", "out_specs"),
    *("sharding", "unconstrained_dims"),
    # Compilation.
    *("compiler_options_kvs", "donated_invars", "inline", "keep_unused", "prevent_cse", "unroll"),
    # Gradients.
    *("bwd", "differentiated", "fwd_jaxpr_thunk", "jvp_jaxpr_fun", "out_trees", "policy"),
    *("symbolic_zeros",),
}
"""Parameters of any primitive that change how JAX computes, not what."""


class Parameters(dict[str, Any]):
    """The parameters of one equation.

    Args:
      primitive: The name of the primitive.
      params: Its parameters in JAX.
      line: The user's line.
    """

    def __init__(self, primitive: str, params: Mapping[str, Any], line: str) -> None:
        super().__init__(params)
        self._primitive = primitive
        self._line = line

    def __missing__(self, name: str) -> Any:
        raise of_another_release(self._primitive, self._line, f"it has no parameter {name!r}")

    def check_known(self) -> None:
        """Checks that the counterpart knows every parameter that may change the results.

        Raises:
          NotConvertible: It does not know one of them.
        """
        known_names = {*_MEANING.get(self._primitive, ()), *_WITHOUT_EFFECT}
        for name, value in self.items():
            # A parameter that is None states nothing, as in a release that does not have it.
            if name not in known_names and value is not None:
                problem = f"its parameter {name!r}, {str(value)[:60]}, is not known"
                raise of_another_release(self._primitive, self._line, problem)


@contextmanager
def attributes_of_this_release(primitive: str, line: str) -> Iterator[None]:
    """Raises NotConvertible where an object of JAX has no attribute of a name, which another
    release may have.
    """
    try:
        yield
    except AttributeError as problem:
        if isinstance(problem.obj, ModuleType):
            owner = problem.obj.__name__
        else:
            owner = f"{type(problem.obj).__module__}.{type(problem.obj).__qualname__}"
        if owner.partition(".")[0] not in ("jax", "jaxlib"):
            raise
        reason = f"{owner} has no attribute {problem.name!r}"
        raise of_another_release(primitive, line, reason) from problem


def of_another_release(primitive: str, line: str, problem: str) -> NotConvertible:
    """Returns the error that an installed release of JAX differs from those that are supported."""
    return NotConvertible(
        f"JAX operation {primitive}{at_line(line)}: {problem} in JAX {jax.__version__}; "
        f"{supported_releases()}"
    )
