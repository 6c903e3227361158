/* Integers of a Python list in one pass. Part of _rows.c. */
#ifndef ROWCAST_LISTS_H
#define ROWCAST_LISTS_H

/* integers(values): [n] int64 of a list that holds nothing but integers that fit; None if it holds anything else. */
static PyObject *integers(PyObject *module, PyObject *values) {
  (void)module;
  if (!PyList_CheckExact(values)) Py_RETURN_NONE;
  npy_intp n = PyList_GET_SIZE(values);
  PyObject *made = PyArray_SimpleNew(1, &n, NPY_INT64);
  if (!made) return NULL;
  int64_t *to = PyArray_DATA((PyArrayObject *)made);
  for (npy_intp k = 0; k < n; k++) {
    PyObject *value = PyList_GET_ITEM(values, k);
    int beyond = 1;
    if (PyLong_CheckExact(value)) to[k] = PyLong_AsLongLongAndOverflow(value, &beyond);
    if (beyond) {
      Py_DECREF(made);
      Py_RETURN_NONE;
    }
  }
  return made;
}

#endif
