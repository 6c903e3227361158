"""What users name: the two programs, `definitions` of a model file, the application of Ray Serve.

In the wheel, all packages of the tree lie in this one; see `hatch_build.py`.
"""
