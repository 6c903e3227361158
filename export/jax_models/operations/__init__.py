"""TensorFlow's counterparts of JAX's primitives, one module for each kind."""
