"""Changes of a model's data while it is served: what was changed, and the file that keeps it."""
