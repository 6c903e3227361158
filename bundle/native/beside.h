/* Rows of several tables side by side, straight from the columns of a call: what a tower's input is filled with in one
   go, where each table by itself costs more in Python than in reading. Part of _rows.c. */
#ifndef ROWCAST_BESIDE_H
#define ROWCAST_BESIDE_H

#define BESIDE_MAX 64  /* tables between two looks at the interpreter's lock */
#define FIRST_ROWS 8   /* of each table, asked for while the others' are checked */
#define FIRST_LINES 4
/* As ALONE_BYTES, of a whole request: to wait for the lock behind other requests would take longer than to read this. */
#define BESIDE_BYTES (1 << 20)

/* Returns the values of a column (values, offsets, weights) that holds `width` of a type for each of n examples; NULL if
   it holds anything else, or weights. */
static const void *plain_values(PyObject *column, npy_intp n, npy_intp width, int type) {
  if (!column || !PyTuple_Check(column) || PyTuple_GET_SIZE(column) != 3 || PyTuple_GET_ITEM(column, 2) != Py_None ||
      !PyArray_Check(PyTuple_GET_ITEM(column, 0)))
    return NULL;
  PyArrayObject *values = (PyArrayObject *)PyTuple_GET_ITEM(column, 0);
  if (PyArray_TYPE(values) != type || PyArray_NDIM(values) != 1 || PyArray_DIM(values, 0) != n * width ||
      !PyArray_IS_C_CONTIGUOUS(values) || !PyArray_ISBEHAVED_RO(values))
    return NULL;
  if (PyTuple_GET_ITEM(column, 1) == Py_None) return PyArray_DATA(values);
  PyArrayObject *offsets = (PyArrayObject *)PyTuple_GET_ITEM(column, 1);
  if (!PyArray_Check(PyTuple_GET_ITEM(column, 1)) || PyArray_TYPE(offsets) != NPY_INT64 || PyArray_NDIM(offsets) != 1 ||
      PyArray_DIM(offsets, 0) != n + 1 || !PyArray_IS_C_CONTIGUOUS(offsets) || !PyArray_ISBEHAVED_RO(offsets))
    return NULL;
  const int64_t *ends = PyArray_DATA(offsets);
  int uneven = 0;
  for (npy_intp k = 0; k <= n; k++) uneven |= ends[k] != k * width;
  return uneven ? NULL : PyArray_DATA(values);
}

/* Returns the rows of a column that holds just one of the table for each of n examples; else NULL. */
static const int64_t *plain_rows(PyObject *column, npy_intp n, const Map *map) {
  const int64_t *rows = plain_values(column, n, 1, NPY_INT64);
  if (!rows) return NULL;
  int beyond = 0;
  for (npy_intp k = 0; k < n; k++) beyond |= (uint64_t)rows[k] >= (uint64_t)map->rows;
  if (beyond) return NULL;
  for (npy_intp k = 0; map->shards == 1 && k < n && k < FIRST_ROWS; k++) {
    const char *at = (const char *)(map->origins[0] + (uintptr_t)rows[k] * map->row_bytes);
    for (size_t line = 0; line < FIRST_LINES && line * LINE < map->row_bytes; line++) __builtin_prefetch(at + line * LINE);
  }
  return rows;
}

/* Copies the numbers of a column, `width` for each of n examples; tells whether it holds just these, all finite. */
static int copied_numbers(PyObject *column, npy_intp n, npy_intp width, char *to, npy_intp stride) {
  const uint32_t *numbers = plain_values(column, n, width, NPY_FLOAT32);
  if (!numbers) return 0;
  int infinite = 0;
  for (npy_intp k = 0; k < n * width; k++) infinite |= (numbers[k] & 0x7f800000) == 0x7f800000;
  for (npy_intp k = 0; !infinite && k < n; k++) memcpy(to + k * stride, numbers + k * width, (size_t)width * sizeof(float));
  return !infinite;
}

/* beside(readers, names, columns, first, out, start): writes the features from number `first` on, from column `start` of
   `out` on; returns the number of the first that it leaves to the caller, for whatever reason. A reader is a table's
   Rows, or how many float32 each example has of a feature without a table. */
static PyObject *beside(PyObject *module, PyObject *const *args, Py_ssize_t count) {
  (void)module;
  if (count != 6 || !PyTuple_Check(args[0]) || !PyTuple_Check(args[1]) || !PyDict_Check(args[2]) ||
      PyTuple_GET_SIZE(args[0]) != PyTuple_GET_SIZE(args[1]))
    return PyErr_Format(PyExc_TypeError, "beside needs readers, names, columns, first, out and start");
  Py_ssize_t at = PyLong_AsSsize_t(args[3]), start = PyLong_AsSsize_t(args[5]);
  if (PyErr_Occurred()) return NULL;
  PyArrayObject *out = (PyArrayObject *)args[4];
  if (!PyArray_Check(args[4]) || PyArray_TYPE(out) != NPY_FLOAT32 || PyArray_NDIM(out) != 2 || !PyArray_ISBEHAVED(out) ||
      (PyArray_DIM(out, 0) && PyArray_DIM(out, 1) > 1 && PyArray_STRIDE(out, 1) != sizeof(float)) || at < 0 || start < 0)
    return PyErr_Format(PyExc_ValueError, "out must be a writable float32 array whose rows lie in one piece each");
  const npy_intp n = PyArray_DIM(out, 0), stride = PyArray_STRIDE(out, 0);
  const Py_ssize_t features = PyTuple_GET_SIZE(args[0]);
  for (Py_ssize_t taken = BESIDE_MAX; taken == BESIDE_MAX;) {
    Rows *from[BESIDE_MAX];
    const int64_t *rows[BESIDE_MAX];
    PyObject *held[BESIDE_MAX];
    char *to[BESIDE_MAX];
    size_t bytes = 0;
    for (taken = 0; taken < BESIDE_MAX && at < features; at++) {
      PyObject *reader = PyTuple_GET_ITEM(args[0], at);
      if (PyLong_CheckExact(reader)) {
        const npy_intp width = PyLong_AsSsize_t(reader);
        if (width < 1 || width > PyArray_DIM(out, 1) - start) break;
        PyObject *numbers = PyDict_GetItemWithError(args[2], PyTuple_GET_ITEM(args[1], at));
        char *where = PyArray_BYTES(out) + start * (Py_ssize_t)sizeof(float);
        if (!copied_numbers(numbers, n, width, where, stride)) break;
        start += width;
        continue;
      }
      if (!Py_IS_TYPE(reader, &RowsType)) break;
      Rows *table = &((RowsObject *)reader)->rows;
      if (start + table->dim > PyArray_DIM(out, 1)) break;
      PyObject *column = PyDict_GetItemWithError(args[2], PyTuple_GET_ITEM(args[1], at));
      if (!(rows[taken] = plain_rows(column, n, &table->values))) break;
      held[taken] = PyTuple_GET_ITEM(column, 0);
      from[taken] = table;
      to[taken] = PyArray_BYTES(out) + start * (Py_ssize_t)sizeof(float);
      start += table->dim;
      bytes += (size_t)n * (table->values.row_bytes + LINE);
      if (table->cold) bytes += BESIDE_BYTES;
      taken++;
    }
    for (Py_ssize_t each = 0; each < taken; each++) Py_INCREF(held[each]);
    PyThreadState *state = bytes <= BESIDE_BYTES ? NULL : PyEval_SaveThread();
    for (Py_ssize_t each = 0; each < taken; each++)
      if (from[each]->cold) tell_rows(from[each], rows[each], n); /* all tables' pages are then read at once */
    for (Py_ssize_t each = 0; each < taken; each++) take_rows(from[each], rows[each], n, to[each], stride);
    if (state) PyEval_RestoreThread(state);
    for (Py_ssize_t each = 0; each < taken; each++) Py_DECREF(held[each]);
    if (PyErr_Occurred()) return NULL;
  }
  return PyLong_FromSsize_t(at);
}

#endif
