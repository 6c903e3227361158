"""The front end of TensorFlow and Keras: traces a model's code and partitions it at lookups."""
