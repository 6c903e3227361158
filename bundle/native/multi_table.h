/* Rows of several tables side by side, straight from the columns of a request: one call fills a tower's input, where a
   call for each table costs more in Python than in reading. Part of _rows.c. */
#ifndef ROWCAST_MULTI_TABLE_H
#define ROWCAST_MULTI_TABLE_H

#define TABLES_MAX 64  /* tables between two decisions about the GIL */
#define FIRST_ROWS 8   /* of each table, prefetched while the others are checked */
#define FIRST_LINES 4
/* As GIL_BYTES, for a whole request: to wait for the GIL behind other requests would take longer than to read this. */
#define TABLES_BYTES (1 << 20)

/* The rows to read of one table. `ends` holds where each bag ends, behind a 0; for single rows it is NULL. */
typedef struct {
  Rows *from;
  const int64_t *rows, *ends;
  npy_intp count;
  Combiner combiner;
  char *to;
  PyObject *values, *offsets; /* what `rows` and `ends` lie in */
  int64_t whole[2];           /* the ends of the only bag of a call */
} Part;

/* Returns whether a column is (values, offsets, None): it has no weights. */
static int unweighted(PyObject *column) {
  return column && PyTuple_Check(column) && PyTuple_Size(column) == 3 && PyTuple_GetItem(column, 2) == Py_None;
}

/* Returns the values of a column (values, offsets, weights) that holds `width` of a type for each of n examples; NULL if
   it holds anything else, or weights. */
static const void *plain_values(PyObject *column, npy_intp n, npy_intp width, int type) {
  if (!unweighted(column)) return NULL;
  PyArrayObject *values = plain_array(PyTuple_GetItem(column, 0), type, 1);
  if (!values || PyArray_DIM(values, 0) != n * width) return NULL;
  if (PyTuple_GetItem(column, 1) == Py_None) return PyArray_DATA(values);
  PyArrayObject *offsets = plain_array(PyTuple_GetItem(column, 1), NPY_INT64, 1);
  if (!offsets || PyArray_DIM(offsets, 0) != n + 1) return NULL;
  const int64_t *ends = PyArray_DATA(offsets);
  int uneven = 0;
  for (npy_intp k = 0; k <= n; k++) uneven |= ends[k] != k * width;
  return uneven ? NULL : PyArray_DATA(values);
}

static int within(const int64_t *rows, npy_intp n, const Map *map) {
  int beyond = 0;
  for (npy_intp k = 0; k < n; k++) beyond |= (uint64_t)rows[k] >= (uint64_t)map->rows;
  return !beyond;
}

/* Returns the rows of a column that holds just one of the table for each of n examples; else NULL. */
static const int64_t *plain_rows(PyObject *column, npy_intp n, const Map *map) {
  const int64_t *rows = plain_values(column, n, 1, NPY_INT64);
  if (!rows || !within(rows, n, map)) return NULL;
  for (npy_intp k = 0; map->segments == 1 && k < n && k < FIRST_ROWS; k++) {
    if (map->deltas) __builtin_prefetch(word_of(map->deltas, rows[k] + map->deltas->shift));
    const char *at = (const char *)(map->origins[0] + (uintptr_t)rows[k] * map->row_bytes);
    for (size_t line = 0; line < FIRST_LINES && line * LINE < map->row_bytes; line++) __builtin_prefetch(at + line * LINE);
  }
  return rows;
}

/* Finds the bags of a column whose ids are rows of the table, all of n examples; returns whether it holds just these. */
static int plain_bags(PyObject *column, npy_intp n, Part *part) {
  if (!unweighted(column)) return 0;
  PyArrayObject *values = plain_array(PyTuple_GetItem(column, 0), NPY_INT64, 1);
  if (!values) return 0;
  part->rows = PyArray_DATA(values), part->count = PyArray_SIZE(values);
  part->whole[0] = 0, part->whole[1] = part->count, part->ends = part->whole;
  PyArrayObject *offsets = NULL;
  if (PyTuple_GetItem(column, 1) != Py_None) {
    if (!(offsets = plain_array(PyTuple_GetItem(column, 1), NPY_INT64, 1))) return 0;
    part->ends = PyArray_DATA(offsets);
  }
  if ((offsets ? PyArray_DIM(offsets, 0) : 2) != n + 1 || part->ends[0] != 0 || part->ends[n] != part->count) return 0;
  return valid_offsets(part->ends, n, part->count) && within(part->rows, part->count, &part->from->values);
}

/* Copies the numbers of a column, `width` for each of n examples; returns whether it holds just these, all finite. */
static int copied_numbers(PyObject *column, npy_intp n, npy_intp width, char *to, npy_intp stride) {
  const uint32_t *numbers = plain_values(column, n, width, NPY_FLOAT32);
  if (!numbers) return 0;
  int infinite = 0;
  for (npy_intp k = 0; k < n * width; k++) infinite |= (numbers[k] & 0x7f800000) == 0x7f800000;
  for (npy_intp k = 0; !infinite && k < n; k++) memcpy(to + k * stride, numbers + k * width, (size_t)width * sizeof(float));
  return !infinite;
}

/* read_tables(readers, names, columns, first, out, start): writes the features from number `first` on, from column `start` of
   `out` on; returns the number of the first that it leaves to the caller, for whatever reason. A reader is a table's
   Rows, of bags (Rows, the number of their combiner), or how many float32 each example has of a feature without a table. */
static PyObject *read_tables(PyObject *module, PyObject *const *args, Py_ssize_t count) {
  (void)module;
  if (count != 6 || !PyTuple_Check(args[0]) || !PyTuple_Check(args[1]) || !PyDict_Check(args[2]) ||
      PyTuple_Size(args[0]) != PyTuple_Size(args[1]))
    return PyErr_Format(PyExc_TypeError, "read_tables needs readers, names, columns, first, out and start");
  Py_ssize_t at = PyLong_AsSsize_t(args[3]), start = PyLong_AsSsize_t(args[5]);
  if (PyErr_Occurred()) return NULL;
  PyArrayObject *out = (PyArrayObject *)args[4];
  if (!PyArray_Check(args[4]) || PyArray_TYPE(out) != NPY_FLOAT32 || PyArray_NDIM(out) != 2 || !PyArray_ISBEHAVED(out) ||
      (PyArray_DIM(out, 0) && PyArray_DIM(out, 1) > 1 && PyArray_STRIDE(out, 1) != sizeof(float)) || at < 0 || start < 0)
    return PyErr_Format(PyExc_ValueError, "out must be a writable float32 array whose rows are contiguous");
  const npy_intp n = PyArray_DIM(out, 0), stride = PyArray_STRIDE(out, 0);
  const Py_ssize_t features = PyTuple_Size(args[0]);
  for (Py_ssize_t taken = TABLES_MAX; taken == TABLES_MAX;) {
    Part parts[TABLES_MAX];
    size_t bytes = 0;
    for (taken = 0; taken < TABLES_MAX && at < features; at++) {
      PyObject *reader = PyTuple_GetItem(args[0], at);
      if (PyLong_CheckExact(reader)) {
        const npy_intp width = PyLong_AsSsize_t(reader);
        if (width < 1 || width > PyArray_DIM(out, 1) - start) break;
        PyObject *numbers = PyDict_GetItemWithError(args[2], PyTuple_GetItem(args[1], at));
        char *where = PyArray_BYTES(out) + start * (Py_ssize_t)sizeof(float);
        if (!copied_numbers(numbers, n, width, where, stride)) break;
        start += width;
        continue;
      }
      Part *part = &parts[taken];
      const int bags = PyTuple_CheckExact(reader) && PyTuple_Size(reader) == 2;
      if (bags) part->combiner = (Combiner)PyLong_AsLong(PyTuple_GetItem(reader, 1)), reader = PyTuple_GetItem(reader, 0);
      if (!Py_IS_TYPE(reader, RowsType)) break;
      part->from = &((RowsObject *)reader)->rows;
      if (start + part->from->dim > PyArray_DIM(out, 1)) break;
      PyObject *column = PyDict_GetItemWithError(args[2], PyTuple_GetItem(args[1], at));
      if (bags) {
        if (!plain_bags(column, n, part)) break;
      } else {
        part->ends = NULL, part->count = n;
        if (!(part->rows = plain_rows(column, n, &part->from->values))) break;
      }
      part->values = PyTuple_GetItem(column, 0), part->offsets = PyTuple_GetItem(column, 1);
      part->to = PyArray_BYTES(out) + start * (Py_ssize_t)sizeof(float);
      start += part->from->dim;
      bytes += (size_t)part->count * (part->from->values.row_bytes + LINE);
      if (part->from->cold) bytes += TABLES_BYTES;
      taken++;
    }
    const Part *const end = parts + taken;
    for (Part *each = parts; each < end; each++) Py_INCREF(each->values), Py_INCREF(each->offsets);
    PyThreadState *state = bytes <= TABLES_BYTES ? NULL : PyEval_SaveThread();
    for (Part *each = parts; each < end; each++)
      if (each->from->cold) advise_rows(each->from, each->rows, each->count); /* so that all tables' pages are read at once */
    for (Part *each = parts; each < end; each++)
      if (each->ends) combine_bags(each->from, each->rows, each->ends, n, NULL, each->combiner, each->to, stride);
      else take_rows(each->from, each->rows, n, each->to, stride);
    if (state) PyEval_RestoreThread(state);
    for (Part *each = parts; each < end; each++) Py_DECREF(each->values), Py_DECREF(each->offsets);
    if (PyErr_Occurred()) return NULL;
  }
  return PyLong_FromSsize_t(at);
}

#endif
