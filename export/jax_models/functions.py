"""The user's model in JAX: functions of one tree of parameters and one dict of inputs."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from export.errors import NotConvertible, UsageError
from export.graphs.internals import is_keras_3_layer
from export.graphs.loading import tf
from export.jax_models.evaluation import Evaluator
from export.jax_models.feature_specs import FeatureSpecs, read_feature_specs
from export.jax_models.loading import jax, load_jax
from export.jax_models.sparsecore_layers import build_with_layers, layers_given
from export.jax_models.tracing import BATCH, TracedFunction, trace
from export.jax_models.values import Parameter, Value
from export.recipe.schema import ExportJob, name_of_call
from export.tensorflow_models.frameworks.named_graphs import without_memory
from export.tensorflow_models.lookups.activations import Activations, plan_activations
from export.tensorflow_models.model.code import load_factory
from export.tensorflow_models.model.keras_variables import SAVE_WITH_NAMES

_EXPECTED = (
    "a factory of a model in JAX returns `shapes, {name: function}`: the shapes of its parameters, "
    "as jax.eval_shape gives them, and functions of (parameters, inputs); and, where functions "
    "take activations, `feature_specs` as a third"
)


class JaxFunctions:
    """Functions that share parameters, which stand for variables without memory.

    Attributes:
      parameters: a tree of `jax.ShapeDtypeStruct`.
      leaves: the same by path, such as `params/users/embedding`.
      functions: by the name that a tower's `call` has; "" where there is only one.
      variables: by the path of the parameter; keys of random numbers have none.
      specs: of the features whose activations the functions take; None: they look up themselves.
      activations: how these features are looked up.
    """

    def __init__(
        self,
        parameters: Any,
        functions: Mapping[str, Callable[..., Any]],
        specs: FeatureSpecs | None = None,
        activations: Activations | None = None,
    ) -> None:
        self.parameters = parameters
        self.functions = dict(functions)
        self.specs = specs
        self.activations = activations or Activations()
        paths, _ = jax.tree.flatten_with_path(parameters)
        self.leaves = {path_of(path): leaf for path, leaf in paths}
        self.variables = {
            path: without_memory(path, tf.TensorShape(leaf.shape), tf.as_dtype(leaf.dtype), True)
            for path, leaf in self.leaves.items()
            if not is_random_key(leaf)
        }

    def function(self, name: str) -> Callable[[Any, Any], Any]:
        """Returns a function as it is traced: `SparseCoreEmbed` returns activations in it."""

        def traced(parameters: Any, inputs: Mapping[str, Any]) -> Any:
            with layers_given(self.specs, inputs):
                return self.functions[name](parameters, inputs)

        return traced


class Calls:
    """The functions as attributes, by the names that towers' `call` has, and nothing else."""

    def __init__(self, model: JaxFunctions) -> None:
        self._model = model

    def __getattr__(self, name: str) -> Any:
        model = self.__dict__.get("_model")
        if model is None or name not in model.functions:
            raise AttributeError(name)
        return _Call(model, name)

    def __call__(self, inputs: Mapping[str, Any]) -> Any:
        """Evaluates the only function."""
        return _Call(self._model, "")(inputs)


class _Call:
    """One function, evaluated as TensorFlow operations inside whatever graph is being traced."""

    def __init__(self, model: JaxFunctions, name: str) -> None:
        self._model = model
        self._name = name
        # AutoGraph would rewrite JAX itself.
        self._evaluated = tf.autograph.experimental.do_not_convert(self._evaluate)

    def __call__(self, inputs: Mapping[str, Any]) -> Any:
        return self._evaluated(dict(inputs))

    def _evaluate(self, inputs: dict[str, Any]) -> Any:
        model = self._model
        for name in model.activations.others(inputs):
            _check_array(name, inputs[name], model.specs)
        inputs = model.activations.looked_up(inputs)
        traced = self._traced(inputs)
        arguments: list[Value] = [
            Parameter(model.variables[path]) if path in model.variables else Value(leaf.shape)
            for path, leaf in model.leaves.items()
        ]
        # JAX orders the values of a dict by their keys.
        ordered = [inputs[name] for name in sorted(inputs)]
        avals = traced.jaxpr.in_avals[len(arguments) :]
        arguments += [
            Value(aval.shape, tensor) for aval, tensor in zip(avals, ordered, strict=True)
        ]
        batch = tf.shape(ordered[0])[0]
        results = Evaluator({BATCH: batch}).results(traced.jaxpr, arguments)
        return jax.tree.unflatten(traced.structure, results)

    def _traced(self, inputs: Mapping[str, Any]) -> TracedFunction:
        model = self._model
        try:
            function = model.function(self._name)
            return trace(function, model.parameters, inputs, name_of_call(self._name))
        except NotConvertible as problem:
            specified = set() if model.specs is None else set(model.specs.table_of)
            missing = ", ".join(sorted(specified - set(inputs)))
            if not missing:
                raise
            raise NotConvertible(
                f"{problem}. The call was given no activation of {missing}, which feature_specs "
                "describe: it takes those of inputs with the same names"
            ) from problem


def _check_array(name: str, tensor: Any, specs: FeatureSpecs | None) -> None:
    if isinstance(tensor, tf.Tensor):
        return
    known = "" if specs is None else f" (it has {', '.join(sorted(specs.table_of))})"
    raise NotConvertible(
        f"input {name!r} is {type(tensor).__name__}, and a function of JAX takes arrays: write "
        f'inputs.{name}.kind = "dense" with a shape, and pad it; or, where the function takes an '
        f"activation, let the factory return its specification among feature_specs{known}"
    )


def build_functions(job: ExportJob, base: Path) -> JaxFunctions:
    """Returns what the recipe's factory returns.

    Raises:
      UsageError: there is no such factory, or no function that a tower calls.
      NotConvertible: it raises, or returns something else; or its feature specifications are
        wrong, or contradict the recipe.
    """
    load_jax()
    reference = job.code.factory
    made = build_with_layers(load_factory(reference, base))
    if is_keras_3_layer(made):
        raise NotConvertible(
            f"factory {reference} returned a model of Keras, and the checkpoint does not have the "
            "names of its variables (RecML's KerasTrainer, for one, saves lists): "
            f"{SAVE_WITH_NAMES}"
        )
    if not isinstance(made, tuple) or len(made) not in (2, 3):
        raise NotConvertible(
            f"factory {reference} returned a {type(made).__name__}, and the checkpoint is Orbax's, "
            f"which JAX wrote; {_EXPECTED}"
        )
    parameters, functions, *more = made
    if callable(functions):
        functions = {"": functions}
    _check_parameters(reference, parameters)
    if not isinstance(functions, Mapping) or not all(map(callable, functions.values())):
        raise NotConvertible(
            f"factory {reference} returned a {type(functions).__name__} beside its shapes; "
            f"{_EXPECTED}"
        )
    for name, part in job.towers.items():
        if part.call not in functions:
            known = ", ".join(repr(each) for each in functions)
            raise UsageError(
                f"towers.{name}.call is {part.call!r}; factory {reference} returned the functions "
                f"{known}"
            )
    if not more:
        return JaxFunctions(parameters, functions)
    specs = read_feature_specs(more[0])
    activations = plan_activations(specs.table_of, job.inputs)
    return JaxFunctions(parameters, functions, specs, activations)


def _check_parameters(reference: str, parameters: Any) -> None:
    leaves = jax.tree.leaves(parameters)
    for leaf in leaves:
        if not isinstance(leaf, jax.ShapeDtypeStruct):
            raise NotConvertible(
                f"factory {reference} returned a {type(leaf).__name__} among the parameters, which "
                f"takes memory; {_EXPECTED}"
            )
    if not leaves:
        raise NotConvertible(f"factory {reference} returned no parameters; {_EXPECTED}")


def path_of(path: Any) -> str:
    """Returns the path of a parameter in its tree, without the `value` that nnx adds."""
    steps = [str(jax.tree_util.keystr((key,), simple=True)) for key in path]
    if len(steps) > 1 and steps[-1] == "value":
        steps.pop()
    return "/".join(steps)


def is_random_key(leaf: Any) -> bool:
    """Returns whether a parameter is a key of random numbers, as dropout layers of nnx have."""
    return bool(jax.dtypes.issubdtype(leaf.dtype, jax.dtypes.extended))
