"""The original model in TensorFlow, run on examples with rows read from the checkpoint."""
