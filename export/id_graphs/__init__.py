"""The rules from ids to rows, as TensorFlow operations and in words, for all front ends."""
