"""Runs TF1 model code: a function that builds a graph whose variables have the names that a Saver
wrote.

It runs in a graph, where each variable is created once per name, unpartitioned (as in the
checkpoint) and without memory, so that all traces of a model share it.
"""

from __future__ import annotations

import contextlib
import functools
import warnings
from collections.abc import Callable, Container, Iterator, Mapping, Sequence
from typing import Any

from export.errors import NotConvertible, UsageError
from export.front_end.calls import Call
from export.graphs.functions import captures_of
from export.graphs.hooks import Hooks
from export.graphs.internals import deprecations_silenced, run_flat
from export.graphs.loading import tf
from export.graphs.placeholders import placeholder_class, shape_and_dtype, without_memory
from export.graphs.walks import needed
from export.tensorflow_models.frameworks.hook_points import DISABLE_EAGER, GET_VARIABLE, LOOKUP
from export.tensorflow_models.frameworks.own_placeholders import OwnPlaceholders, is_result

AVERAGE = "/ExponentialMovingAverage"
"""Suffix of the name of a variable's moving average."""
_TF1_FACTORIES: set[str] = set()
"""Factories whose code has switched TensorFlow to TF1's behavior."""


class NamedGraph:
    """A function of one dict of inputs that builds a graph, or an object that has such methods, or
    that has tensors of a graph which its constructor builds.

    Attributes:
      variables: The variables created so far, by name.
      averages: Whether their values are the moving averages of a checkpoint, if it has any.
    """

    def __init__(
        self,
        built: OwnPlaceholders,
        reference: str,
        variables: dict[str, Any] | None = None,
        averages: bool = False,
        call: Call | None = None,
        steps: tuple[str, ...] = (),
    ) -> None:
        """Takes the result of the factory `reference` of the recipe, the call to serve, and the
        attributes that lead to it.
        """
        self._built = built
        self._steps = steps
        self._build = functools.reduce(getattr, steps, built.root)
        self._reference = reference
        self._call = call or Call()
        self.averages = averages
        # Shared by all parts of a model, so that all traces use one variable of a name.
        self.variables: dict[str, Any] = {}
        if variables is not None:
            self.variables = variables

    def __getattr__(self, step: str) -> NamedGraph:
        steps = (*self._steps, step)
        return NamedGraph(self._built, self._reference, self.variables, self.averages, steps=steps)

    def with_call(self, call: Call) -> NamedGraph:
        """Returns the function as it is given its arguments by a call."""
        return NamedGraph(
            self._built, self._reference, self.variables, self.averages, call, self._steps
        )

    def key(self, name: str, stored_names: Container[str]) -> str:
        """Returns the key of a variable's value among those of a checkpoint; "" if there is none.

        Source: TensorFlow 2.20, python/training/moving_averages.py,
        ExponentialMovingAverage.variables_to_restore.
        """
        average = f"{name}{AVERAGE}"
        if self.averages and average in stored_names:
            return average
        if name in stored_names:
            return name
        return ""

    def __call__(self, inputs: Mapping[str, Any]) -> Any:
        """Builds the graph inside the one that is being traced."""
        positional, by_name = self._call.bind(inputs)
        with shared_variables(self.variables, _create_named), tf1_code(self._reference):
            if is_result(self._build):
                root = self._built.rebuilt(_by_placeholder(positional, by_name))
                return functools.reduce(getattr, self._steps, root)
            build = tf.autograph.experimental.do_not_convert(self._build)
            return build(*positional, **by_name)

    def run(self, inputs: Mapping[str, Any], read: Callable[[str], Any]) -> Any:
        """Builds the graph for these inputs and runs it.

        Args:
          inputs: The values of the inputs.
          read: Returns the trained value of a variable by its name; None for a table, whose rows
            come from elsewhere.
        """
        whole = tf.compat.v1.wrap_function(
            self, [{name: tf.type_spec_from_value(value) for name, value in inputs.items()}]
        )
        results = tf.nest.flatten(whole.structured_outputs, expand_composites=True)
        captures = captures_of(whole.graph, needed(results, []))
        captured_ids = {id(outer) for outer, _ in captures}
        # Without what no result needs, such as the operations of a loss or a step of training.
        function = whole.prune(whole.inputs, whole.structured_outputs)
        for name, variable in self.variables.items():
            # What the graph does not read may be missing in the checkpoint.
            if id(variable.handle) not in captured_ids:
                continue
            value = read(name)
            if value is not None:
                variable.assign(value)
        values = tf.nest.flatten(dict(inputs), expand_composites=True)
        return run_flat(function, values)


def load_named(
    reference: str, load: Callable[[], Callable[[], Any]], averages: bool = False
) -> NamedGraph:
    """Loads model code inside a graph, as TF1 programs run.

    Args:
      reference: The recipe's `code.factory`.
      load: Imports the code, and returns its factory.
      averages: Whether variables have the values of their moving averages.

    Raises:
      NotConvertible: The factory does not return a function.
    """
    variables: dict[str, Any] = {}
    built: Any = None

    def build_once() -> None:
        nonlocal built
        with shared_variables(variables, _create_named):
            built = OwnPlaceholders(factory)

    with _quiet(), Hooks() as hooks:
        # The exporter needs eager execution, which cannot be enabled again; in a graph nothing is
        # eager anyway.
        hooks.replace(DISABLE_EAGER, lambda _: None)
        with tf.Graph().as_default():
            factory = load()
        tf.compat.v1.wrap_function(build_once, [])
    restore_behavior(reference)
    build = built.root
    if hasattr(build, "_trackable_children") or not (callable(build) or hasattr(build, "__dict__")):
        raise NotConvertible(
            f"factory {reference} returned a {type(build).__name__}, but the checkpoint has only "
            "the names of variables; let it return a function of one dict of inputs that builds "
            "the graph, or an object whose attributes are tensors of its graph, or load the "
            "checkpoint into the model and save that with tf.train.Checkpoint"
        )
    return NamedGraph(built, reference, variables, averages)


def _by_placeholder(positional: Sequence[Any], by_name: Mapping[str, Any]) -> dict[str, Any]:
    """Returns the arguments of a call by the names of placeholders; a dictionary in one is that of
    an object's attributes.

    Raises:
      UsageError: An argument has no name.
    """
    values = dict(by_name)
    for argument in positional:
        if not isinstance(argument, Mapping):
            raise UsageError(
                "the tower's result is a tensor of a graph with placeholders: name these in its "
                "'arguments', as in arguments = { users = \"user_id\", keep_prob = 1.0 }"
            )
        values |= argument
    flat: dict[str, Any] = {}
    for name, value in values.items():
        if isinstance(value, Mapping):
            inner = {f"{name}.{step}": part for step, part in value.items()}
            flat |= _by_placeholder([], inner)
        else:
            flat[name] = value
    return flat


@contextlib.contextmanager
def _quiet() -> Iterator[None]:
    """Silences TensorFlow's warnings that TF1 is deprecated."""
    with deprecations_silenced(), warnings.catch_warnings():
        warnings.filterwarnings("ignore", message=".*is deprecated and will be removed")
        yield


@contextlib.contextmanager
def tf1_code(reference: str) -> Iterator[None]:
    """Runs code of TF1 inside the `with` block: without warnings that it is, and with TF1's shapes
    and equality if it enabled TF1's behavior.

    Not with its control flow: in a graph of a function, TensorFlow ignores that switch.

    Args:
      reference: The recipe's `code.factory`.
    """
    with _quiet():
        if reference not in _TF1_FACTORIES:
            yield
            return
        v1 = tf.compat.v1
        v1.disable_v2_tensorshape()
        v1.disable_tensor_equality()
        try:
            yield
        finally:
            v1.enable_v2_tensorshape()
            v1.enable_tensor_equality()


def restore_behavior(reference: str) -> None:
    """Restores the behavior of TensorFlow 2 if the code of a factory has switched to TF1's."""
    if not tf.__internal__.tf2.enabled():
        _TF1_FACTORIES.add(reference)
        tf.compat.v1.enable_v2_behavior()


@contextlib.contextmanager
def shared_variables(variables: dict[str, Any], create_new: Callable[..., Any]) -> Iterator[None]:
    """Takes every variable of a graph from `variables`, and adds new ones to it.

    Args:
      variables: Variables by their names in the graph.
      create_new: Takes TensorFlow's own creator and its options, with the name in the graph;
        returns a variable that belongs to no graph.
    """
    from tensorflow.python.framework import ops

    keys = tf.compat.v1.GraphKeys

    def create(make: Callable[..., Any], **options: Any) -> Any:
        # As TensorFlow names it: in the scope that is open, and with a number if the name is used.
        with ops.name_scope(options.get("name"), "Variable", skip_on_eager=False) as scope:
            name = ops.name_from_scope_name(scope)
        if name not in variables:
            variables[name] = create_new(make, **{**options, "name": name})
        variable = variables[name]
        collections = list(options.get("collections") or [keys.GLOBAL_VARIABLES])
        # Optimizers look for them there.
        if options.get("trainable", True) and keys.TRAINABLE_VARIABLES not in collections:
            collections.append(keys.TRAINABLE_VARIABLES)
        for collection in collections:
            tf.compat.v1.add_to_collection(collection, variable)
        return variable

    def look_up(original: Callable[..., Any], **arguments: Any) -> Any:
        table = arguments["params"]
        if arguments["partition_strategy"] == "mod" and isinstance(table, placeholder_class()):
            table.mod = True
        return original(**arguments)

    def get_whole(original: Callable[..., Any], *arguments: Any, **options: Any) -> Any:
        # A checkpoint holds a partitioned variable as one tensor.
        options["partitioner"] = None
        return original(*arguments, **options)

    with tf.variable_creator_scope(create), Hooks() as hooks:
        hooks.replace(LOOKUP, look_up)
        hooks.replace(GET_VARIABLE, get_whole)
        yield


def _create_named(_make: Callable[..., Any], **options: Any) -> Any:
    shape, dtype = shape_and_dtype(options)
    return without_memory(options["name"], shape, dtype, bool(options.get("trainable", True)))
