"""The user's model in JAX: functions of one tree of parameters and one dictionary of inputs."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from export.checkpoint.formats.orbax import KERAS_LISTS
from export.errors import NotConvertible
from export.front_end.calls import Call
from export.front_end.named_functions import functions_called
from export.graphs.internals import is_keras_3_layer
from export.graphs.loading import tf
from export.graphs.placeholders import tables_unallocated, without_memory
from export.jax_models.evaluation import Evaluator
from export.jax_models.feature_specs import FeatureSpecs, read_feature_specs
from export.jax_models.loading import jax, load_jax
from export.jax_models.open_batch import with_open_batch
from export.jax_models.sparsecore_layers import build_with_layers, lookups_returning
from export.jax_models.tracing import BATCH, FixedBatch, TracedFunction, trace
from export.jax_models.values import Parameter, Value
from export.model_code.factories import factory_of
from export.partition.lookups.activations import Activations, plan_activations
from export.partition.traceable_model import TraceableModel
from export.raised_errors import call_model
from export.recipe.schema import ExportJob

_EXPECTED = (
    "a factory of a model in JAX returns `shapes, {name: function}`: the shapes of its parameters, "
    "as jax.eval_shape returns them, and functions of (parameters, inputs); and, where functions "
    "take activations, `feature_specs` as a third"
)
_STATE_BATCH = (
    "Or let feature_specs state the batch of training, input_shape=(batch, ids of one example) and "
    "output_shape=(batch, embedding_dim): then it is opened"
)
_SAMPLE_BATCHES = (89, 97)
"""Numbers of examples that no other size of a model is likely to be, or to be divisible by."""
_KERAS_LISTS = " or ".join(map("/".join, KERAS_LISTS))


class JaxFunctions(TraceableModel):
    """Functions that share parameters, and variables without memory in place of the parameters.

    Attributes:
      parameters: The parameters, a tree of `jax.ShapeDtypeStruct`.
      leaves: The leaves of that tree by path, such as `params.users.embedding`.
      functions: Functions by the name that a tower's `call` has; "" for a single function.
      variables: Variables by the path of their parameter; keys of random numbers have none.
      specs: Specifications of the features whose activations the functions read; None if the
        functions look up themselves.
      activations: The lookups of these features.
      fixed_batches: Calls whose code runs in one size of the batch only, and that size; filled
        while the calls are traced.
    """

    has_initial_values = False

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
        leaves, _ = jax.tree.flatten_with_path(parameters)
        self.leaves = {path_of(steps): leaf for steps, leaf in leaves}
        # Variables without memory: tables may be larger than the memory of this machine.
        self.variables = {
            path: without_memory(path, tf.TensorShape(leaf.shape), tf.as_dtype(leaf.dtype), True)
            for path, leaf in self.leaves.items()
            if not is_random_key(leaf)
        }

    def function(self, call: Call) -> Callable[[Mapping[str, Any]], Any]:
        """See TraceableModel.function: evaluates a function as TensorFlow operations."""
        return _EvaluatedCall(self, call)

    def function_of_jax(self, call: Call) -> Callable[[Any, Any], Any]:
        """Returns the function of (parameters, inputs by name) that a call runs when it is traced.

        Lookups of SparseCores return activations in it.
        """

        def run(parameters: Any, inputs: Mapping[str, Any]) -> Any:
            positional, by_name = call.bind(inputs)
            if not call.is_ordered:
                # JAX passes dictionaries on in the order of their keys, which may name a layer's
                # parameters: mapping the tree restores that order.
                positional, by_name = jax.tree.map(lambda leaf: leaf, (positional, by_name))
            with lookups_returning(self.specs, inputs):
                return call_model(self.functions[call.path], parameters, *positional, **by_name)

        return run


class _EvaluatedCall:
    """One call, evaluated as TensorFlow operations in the graph that is being traced."""

    def __init__(self, model: JaxFunctions, call: Call) -> None:
        self._model = model
        self._call = call

    def __call__(self, inputs: Mapping[str, Any]) -> Any:
        model = self._model
        for name in model.activations.plain_inputs(inputs):
            _check_array(name, inputs[name], model.specs)
        inputs = model.activations.looked_up(inputs)
        # Every input has the batch as its first axis before activations are made flat.
        batch = tf.shape(inputs[min(inputs)])[0]
        for name in inputs.keys() & model.activations.bags.keys():
            inputs[name] = _flatten(inputs[name])
        traced = self._trace_any_batch(inputs)

        arguments: list[Value] = []
        for path, leaf in model.leaves.items():
            if path in model.variables:
                arguments.append(Parameter(model.variables[path]))
            else:
                # A key of random numbers needs no value: only draws read it, which are rejected.
                arguments.append(Value(leaf.shape))
        # JAX orders the values of a dictionary by their keys.
        tensors = [inputs[name] for name in sorted(inputs)]
        avals = traced.jaxpr.in_avals[len(arguments) :]
        arguments += [
            Value(aval.shape, tensor) for aval, tensor in zip(avals, tensors, strict=True)
        ]
        results = Evaluator({BATCH: batch}).results(traced.jaxpr, arguments)
        return jax.tree.unflatten(traced.structure, results)

    def _trace_any_batch(self, inputs: Mapping[str, Any]) -> TracedFunction:
        """Traces the function for any batch, or else in the batch of training, which is opened."""
        try:
            return self._trace(inputs)
        except NotConvertible as problem:
            batch = self._model.activations.batch
            if batch is not None and batch > 1:
                return self._trace_fixed_batch(inputs, batch, problem)
            opened = self._trace_sample_batches(inputs)
            if opened is not None:
                return opened
            message = str(problem)
            if isinstance(problem, FixedBatch) and self._model.specs is not None and not batch:
                message = f"{message}. {_STATE_BATCH}"
            raise self._with_missing(message) from problem

    def _trace_sample_batches(self, inputs: Mapping[str, Any]) -> TracedFunction | None:
        """Traces the function in batches of two sizes, and opens them: JAX has no counterpart of
        some functions in an open batch, such as `x.squeeze()`, which run in a batch of any size.

        Returns:
          The function in any batch; None if it does not run in these batches, or computes something
          else in each.
        """
        try:
            first, second = (
                with_open_batch(self._trace(inputs, batch), batch, self._positions(inputs))
                for batch in _SAMPLE_BATCHES
            )
        except NotConvertible:
            return None
        # Code may compute with the size of the batch, or choose by it what it computes.
        if str(first.jaxpr) != str(second.jaxpr):
            return None
        constants = zip(first.jaxpr.consts, second.jaxpr.consts, strict=True)
        if not all(np.array_equal(*pair) for pair in constants):
            return None
        return first

    def _trace_fixed_batch(
        self, inputs: Mapping[str, Any], batch: int, problem: NotConvertible
    ) -> TracedFunction:
        """Traces the function in the batch of training, and opens this batch.

        Args:
          inputs: Inputs, as for `trace`.
          batch: The number of examples that the feature specifications state.
          problem: The error of tracing the function for any batch.
        """
        model = self._model
        try:
            opened = with_open_batch(self._trace(inputs, batch), batch, self._positions(inputs))
        except FixedBatch as fixed_problem:
            raise NotConvertible(f"{fixed_problem}{self._remedy_of_many_ids()}") from problem
        except NotConvertible as fixed_problem:
            message = str(problem)
            # One message is enough if the code fails the same way in any batch.
            if str(fixed_problem) != message:
                message = (
                    f"{message}. In a batch of {batch}, as feature_specs state, {fixed_problem}"
                    f"{self._remedy_of_many_ids()}"
                )
            raise self._with_missing(message) from problem
        model.fixed_batches[self._call] = batch
        return opened

    def _positions(self, inputs: Mapping[str, Any]) -> list[int]:
        return [self._model.activations.positions(name) for name in sorted(inputs)]

    def _remedy_of_many_ids(self) -> str:
        """Returns the declaration of ids that have an activation each, as a further sentence; "" if
        the recipe has it, or no feature can need it.
        """
        activations = self._model.activations
        specs = self._model.specs
        if specs is None or any(bag.positions > 1 for bag in activations.bags.values()):
            return ""
        names = [name for name in activations.bags if specs.sizes_of[name].ids == 1]
        if not names:
            return ""
        return (
            f". Where an example has several ids in {' or '.join(names)}, and an activation for "
            f'each, write their number: inputs.{names[0]} = {{ dtype = "int32", shape = [16] }}'
        )

    def _trace(self, inputs: Mapping[str, Any], batch: int | None = None) -> TracedFunction:
        model = self._model
        return trace(
            model.function_of_jax(self._call),
            model.parameters,
            inputs,
            str(self._call),
            positions={name: model.activations.positions(name) for name in inputs},
            batch=batch,
        )

    def _with_missing(self, problem: str) -> NotConvertible:
        """Returns an error that also names the features whose activations the call lacks."""
        specs = self._model.specs
        if specs is None:
            return NotConvertible(problem)
        missing = sorted(set(specs.table_of) - set(self._call.inputs))
        if not missing:
            return NotConvertible(problem)
        names = " and ".join(missing)
        noun = "an input" if len(missing) == 1 else "inputs"
        return NotConvertible(
            f"{problem}. The call gets no activation for {names}, which feature_specs describe: "
            f"add {noun} named {names} to the tower"
        )


def _flatten(activations: Any) -> Any:
    """Returns activations [b, positions, dim] in the shape of SparseCores' results,
    [b * positions, dim].
    """
    if activations.shape.rank == 2:
        return activations
    return tf.reshape(activations, [-1, activations.shape[-1]])


def _check_array(name: str, tensor: Any, specs: FeatureSpecs | None) -> None:
    if isinstance(tensor, tf.Tensor):
        return
    specified_features = ""
    if specs is not None:
        specified_features = f" (it has {', '.join(sorted(specs.table_of))})"
    raise NotConvertible(
        f"input {name!r} is {type(tensor).__name__}, and a function of JAX takes arrays: write "
        f'inputs.{name}.kind = "dense" with a shape, and pad it; or, where the function takes an '
        f"activation, let the factory return its specification among feature_specs"
        f"{specified_features}"
    )


def build_functions(job: ExportJob, base: Path) -> JaxFunctions:
    """Returns the functions that the recipe's factory returns.

    Raises:
      UsageError: There is no such factory, or no function that a tower calls.
      NotConvertible: The factory raises an error, or returns something else; or its feature
        specifications are wrong, or contradict the recipe.
    """
    load_jax()
    reference = job.code.factory
    # A model of Keras, which is rejected, allocates no table.
    with tables_unallocated():
        model = build_with_layers(factory_of(job, base))
    # TensorFlow's front end exports models of Keras, also from Orbax; here come those whose
    # checkpoint it does not recognize.
    if is_keras_3_layer(model):
        raise NotConvertible(
            f"factory {reference} returned a model of Keras, and the checkpoint has its variables "
            "neither by their names nor in the lists that RecML's trainers save "
            f"({_KERAS_LISTS}): save the model with keras.callbacks.OrbaxCheckpoint or "
            'model.save_weights("model.weights.h5")'
        )
    if not isinstance(model, tuple) or len(model) not in (2, 3):
        raise NotConvertible(
            f"factory {reference} returned a {type(model).__name__}, and the checkpoint is "
            f"Orbax's, which JAX wrote; {_EXPECTED}"
        )

    parameters, functions, *feature_specs = model
    if callable(functions):
        functions = {"": functions}
    _check_parameters(reference, parameters)
    are_named = isinstance(functions, Mapping)
    if not are_named or not all(map(callable, functions.values())):
        raise NotConvertible(
            f"factory {reference} returned a {type(functions).__name__} as its functions; "
            f"{_EXPECTED}"
        )
    functions = functions_called(functions, job, "functions")

    if not feature_specs:
        return JaxFunctions(parameters, functions)
    specs = read_feature_specs(feature_specs[0])
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
    places: dict[str, str] = {}
    for steps, _ in jax.tree.leaves_with_path(parameters):
        path = path_of(steps)
        place = jax.tree_util.keystr(steps)
        if path in places:
            raise NotConvertible(
                f"factory {reference} returned the parameters {places[path]} and {place}, which "
                f"Orbax both stores as {path!r}, so that a checkpoint has one of them: rename a "
                "key in the training program"
            )
        places[path] = place


def path_of(steps: Any) -> str:
    """Returns the path of a parameter in its tree, without the `value` that nnx adds.

    Orbax joins the steps in the same way; a key may have slashes.
    """
    keys = [str(jax.tree_util.keystr((step,), simple=True)) for step in steps]
    if len(keys) > 1 and keys[-1] == "value":
        keys.pop()
    return ".".join(keys)


def is_random_key(leaf: Any) -> bool:
    """Returns whether a parameter is a key of random numbers, as dropout layers of nnx have."""
    return bool(jax.dtypes.issubdtype(leaf.dtype, jax.dtypes.extended))
