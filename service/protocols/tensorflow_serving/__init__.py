"""The APIs of TensorFlow Serving, over HTTP and gRPC."""
