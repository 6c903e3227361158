"""The samples of jax-tpu-embedding."""
