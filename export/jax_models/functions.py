"""The user's model in JAX: functions of one tree of parameters and one dict of inputs."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from export.checkpoint.formats.orbax import KERAS_LISTS
from export.errors import NotConvertible, UsageError
from export.front_end.calls import Call
from export.graphs.internals import is_keras_3_layer
from export.graphs.loading import tf
from export.jax_models.evaluation import Evaluator
from export.jax_models.feature_specs import FeatureSpecs, read_feature_specs
from export.jax_models.loading import jax, load_jax
from export.jax_models.open_batch import with_open_batch
from export.jax_models.sparsecore_layers import build_with_layers, layers_given
from export.jax_models.tracing import BATCH, FixedBatch, TracedFunction, trace
from export.jax_models.values import Parameter, Value
from export.model_code.factories import factory_of
from export.recipe.schema import ExportJob
from export.tensorflow_models.frameworks.named_graphs import without_memory
from export.tensorflow_models.lookups.activations import Activations, plan_activations

_EXPECTED = (
    "a factory of a model in JAX returns `shapes, {name: function}`: the shapes of its parameters, "
    "as jax.eval_shape gives them, and functions of (parameters, inputs); and, where functions "
    "take activations, `feature_specs` as a third"
)
_STATE_BATCH = (
    "Or let feature_specs state the batch of training, input_shape=(batch, ids of one example) and "
    "output_shape=(batch, embedding_dim): then it is opened"
)
_KERAS_LISTS = " or ".join(map("/".join, KERAS_LISTS))


class JaxFunctions:
    """Functions that share parameters, which stand for variables without memory.

    Attributes:
      parameters: a tree of `jax.ShapeDtypeStruct`.
      leaves: the same by path, such as `params/users/embedding`.
      functions: by the name that a tower's `call` has; "" where there is only one.
      variables: by the path of the parameter; keys of random numbers have none.
      specs: of the features whose activations the functions take; None: they look up themselves.
      activations: how these features are looked up.
      fixed_batches: calls whose code runs in one size of the batch only, and that size; known once
        they are traced.
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
        self.fixed_batches: dict[Call, int] = {}
        paths, _ = jax.tree.flatten_with_path(parameters)
        self.leaves = {path_of(path): leaf for path, leaf in paths}
        self.variables = {
            path: without_memory(path, tf.TensorShape(leaf.shape), tf.as_dtype(leaf.dtype), True)
            for path, leaf in self.leaves.items()
            if not is_random_key(leaf)
        }

    def function(self, call: Call) -> Callable[[Any, Any], Any]:
        """Returns what a call runs, as it is traced: it takes parameters, and inputs by their
        names. Lookups of SparseCores return activations in it.
        """

        def traced(parameters: Any, inputs: Mapping[str, Any]) -> Any:
            # JAX passes dicts on in the order of their keys, which may name a layer's parameters.
            positional, by_name = jax.tree.map(lambda leaf: leaf, call.bind(inputs))
            with layers_given(self.specs, inputs):
                return self.functions[call.path](parameters, *positional, **by_name)

        return traced


class Calls:
    """The functions as attributes, by the names that towers' `call` has, and nothing else."""

    def __init__(self, model: JaxFunctions) -> None:
        self._model = model

    def with_call(self, call: Call) -> _Evaluated:
        """Returns what evaluates a call."""
        return _Evaluated(self._model, call)

    def __getattr__(self, name: str) -> Any:
        model = self.__dict__.get("_model")
        if model is None or name not in model.functions:
            raise AttributeError(name)
        return self


class _Evaluated:
    """One call, evaluated as TensorFlow operations inside whatever graph is being traced."""

    def __init__(self, model: JaxFunctions, call: Call) -> None:
        self._model = model
        self._call = call
        # AutoGraph would rewrite JAX itself.
        self._evaluated = tf.autograph.experimental.do_not_convert(self._evaluate)

    def __call__(self, inputs: Mapping[str, Any]) -> Any:
        return self._evaluated(dict(inputs))

    def _evaluate(self, inputs: dict[str, Any]) -> Any:
        model = self._model
        for name in model.activations.plain_inputs(inputs):
            _check_array(name, inputs[name], model.specs)
        looked_up = model.activations.looked_up(inputs)
        batch = tf.shape(looked_up[min(looked_up)])[0]
        inputs = {
            name: _flat(tensor) if name in model.activations.bags else tensor
            for name, tensor in looked_up.items()
        }
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
        results = Evaluator({BATCH: batch}).results(traced.jaxpr, arguments)
        return jax.tree.unflatten(traced.structure, results)

    def _traced(self, inputs: Mapping[str, Any]) -> TracedFunction:
        try:
            return self._trace(inputs)
        except NotConvertible as problem:
            batch = self._model.activations.batch
            if batch is not None and batch > 1:
                return self._opened(inputs, batch, problem)
            message = str(problem)
            if isinstance(problem, FixedBatch) and self._model.specs is not None and not batch:
                message = f"{message}. {_STATE_BATCH}"
            raise self._with_missing(message) from problem

    def _opened(
        self, inputs: Mapping[str, Any], batch: int, problem: NotConvertible
    ) -> TracedFunction:
        """Traces the function in the batch of training, and opens that.

        Args:
          inputs: as for `trace`.
          batch: the number of examples that the feature specifications state.
          problem: why it is not traced for any batch.
        """
        model = self._model
        positions = [model.activations.positions(name) for name in sorted(inputs)]
        try:
            opened = with_open_batch(self._trace(inputs, batch), batch, positions)
        except FixedBatch as fixed_problem:
            raise NotConvertible(f"{fixed_problem}{self._several_ids()}") from problem
        except NotConvertible as fixed_problem:
            message = str(problem)
            if str(fixed_problem) != message:
                message = (
                    f"{message}. In a batch of {batch}, as feature_specs state, {fixed_problem}"
                    f"{self._several_ids()}"
                )
            raise self._with_missing(message) from problem
        model.fixed_batches[self._call] = batch
        return opened

    def _several_ids(self) -> str:
        """Returns how ids are declared that have an activation each, where none are."""
        activations = self._model.activations
        specs = self._model.specs
        if specs is None or any(bag.positions > 1 for bag in activations.bags.values()):
            return ""
        single = [name for name in activations.bags if specs.sizes_of[name].ids == 1]
        if not single:
            return ""
        return (
            f". Where an example has several ids in {' or '.join(single)}, and an activation for "
            f'each, write their number: inputs.{single[0]} = {{ dtype = "int32", shape = [16] }}'
        )

    def _trace(self, inputs: Mapping[str, Any], batch: int | None = None) -> TracedFunction:
        model = self._model
        return trace(
            model.function(self._call),
            model.parameters,
            inputs,
            str(self._call),
            positions={name: model.activations.positions(name) for name in inputs},
            batch=batch,
        )

    def _with_missing(self, problem: str) -> NotConvertible:
        """Returns an error that also names the features of which the call got no activation."""
        specs = self._model.specs
        specified = set() if specs is None else set(specs.table_of)
        missing = ", ".join(sorted(specified - set(self._call.inputs)))
        if not missing:
            return NotConvertible(problem)
        return NotConvertible(
            f"{problem}. The call was given no activation of {missing}, which feature_specs "
            "describe: it takes those of inputs with the same names"
        )


def _flat(activations: Any) -> Any:
    """Returns activations [b, positions, dim] as SparseCores do: [b * positions, dim]."""
    if activations.shape.rank == 2:
        return activations
    return tf.reshape(activations, [-1, activations.shape[-1]])


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
    made = build_with_layers(factory_of(job, base))
    if is_keras_3_layer(made):
        raise NotConvertible(
            f"factory {reference} returned a model of Keras, and the checkpoint has its variables "
            "neither by their names nor in the lists that RecML's trainers save "
            f"({_KERAS_LISTS}): save the model with keras.callbacks.OrbaxCheckpoint or "
            'model.save_weights("model.weights.h5")'
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
    activations = plan_activations(specs.table_of, job.inputs, specs.sizes_of)
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
