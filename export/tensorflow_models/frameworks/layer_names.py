"""The names that Keras gives layers whose code states none: that of the class, with a number for
all but the first layer of a class.

Source: Keras 3.15, src/utils/naming.py; tf-keras 2.20, src/utils/generic_utils.py,
src/engine/functional.py, src/engine/input_layer.py, src/layers/core/tf_op_layer.py.
"""

from __future__ import annotations

import re

_NUMBER = re.compile(r"_\d+$")
_HIDDEN_CLASSES = {"Functional": "model", "InputLayer": "input"}
"""What Keras 2 calls layers of classes that it does not show its users."""
_FUNCTION_LAYERS = ("TFOpLambda", "ClassMethod", "InstanceMethod", "SlicingOpLambda")
"""The classes of layers that Keras 2 makes of functions, and calls after these."""


def name_in_list(class_name: str, *, of_keras_3: bool) -> str:
    """Returns what Keras calls the first layer of a class in a list of layers."""
    name = re.sub(r"\W+", "", class_name)
    name = re.sub(r"(.)([A-Z][a-z]+)", r"\1_\2", name)
    name = re.sub(r"([a-z])([A-Z])", r"\1_\2", name).lower()
    if name.startswith("_") and not of_keras_3:
        # No scope of TensorFlow begins with an underscore.
        return f"private{name}"
    return name


def automatic_names(class_name: str) -> set[str]:
    """Returns what Keras 2 and Keras 3 call the first layer of a class in a process."""
    # A registered class is `package>Class` in a configuration.
    class_name = class_name.rpartition(">")[2]
    names = {name_in_list(class_name, of_keras_3=of_keras_3) for of_keras_3 in (False, True)}
    if class_name in _HIDDEN_CLASSES:
        names.add(_HIDDEN_CLASSES[class_name])
    return names


def is_automatic(name: str, class_name: str) -> bool:
    """Returns whether Keras may have given a layer of a class its name."""
    if class_name in _FUNCTION_LAYERS:
        return name.startswith("tf.")
    # The name of a class may end with a number, too.
    return not automatic_names(class_name).isdisjoint({name, without_number(name)})


def without_number(name: str) -> str:
    """Returns a name, or a path that ends with one, without its number."""
    return _NUMBER.sub("", name)
