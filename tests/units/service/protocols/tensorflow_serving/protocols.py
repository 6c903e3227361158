"""The name of TensorFlow Serving's protocols."""

PROTOCOLS = ("tensorflow-serving",)
