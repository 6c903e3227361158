"""TensorFlow's graphs, which the towers of every front end are: loaded, walked and pruned."""
