"""Models in JAX: functions of a tree of parameters, evaluated as TensorFlow operations."""
