"""All that depends on internals of TensorFlow and Keras."""
