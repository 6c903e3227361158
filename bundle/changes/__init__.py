"""Changes of a model's data while it is served: what a change is, and the log that keeps them."""
