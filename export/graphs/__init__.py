"""TensorFlow's graphs, which the towers of every front end are: loaded, walked and pruned; and the
functions and variables of libraries that are replaced while they are traced.
"""
