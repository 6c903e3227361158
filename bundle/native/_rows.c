/* The Python interface of kernels.h: Rows(dtype, dim, values, scales) with take and bags over numpy arrays. What else is
   compiled is in multi_table.h, fingerprints.h and candidates.h. */
#define _GNU_SOURCE /* RUSAGE_THREAD */
#define PY_SSIZE_T_CLEAN
#define Py_LIMITED_API 0x030B0000 /* one build for Python 3.11 and all later releases */
#define NPY_NO_DEPRECATED_API NPY_2_0_API_VERSION
#define NPY_TARGET_VERSION NPY_2_0_API_VERSION
#include <Python.h>
#include <numpy/arrayobject.h>

#include "kernels.h"

#define BUCKETS_MAX 16384
/* The GIL is released for reads of more bytes than this, about 15 us of work: releasing it for less costs more than
   other threads gain. */
#define GIL_BYTES (256 << 10)

typedef struct {
  PyObject_HEAD
  Rows rows;
  PyObject *held; /* the arrays whose memory is read */
} RowsObject;

/* Returns a contiguous array of a type and of so many dimensions; NULL if it is anything else. */
static PyArrayObject *plain_array(PyObject *given, int type, int dimensions) {
  PyArrayObject *array = (PyArrayObject *)given;
  const int plain = PyArray_Check(given) && PyArray_TYPE(array) == type && PyArray_NDIM(array) == dimensions &&
                    PyArray_IS_C_CONTIGUOUS(array) && PyArray_ISBEHAVED_RO(array);
  return plain ? array : NULL;
}

static void free_map(Map *map) {
  PyMem_Free(map->origins);
  PyMem_Free(map->starts);
  PyMem_Free(map->buckets);
  PyMem_Free(map->deltas);
}

static void dealloc(RowsObject *self) {
  free_map(&self->rows.values);
  free_map(&self->rows.scales);
  PyMem_Free(self->rows.zeros);
  Py_XDECREF(self->held);
  PyTypeObject *type = Py_TYPE((PyObject *)self);
  ((freefunc)PyType_GetSlot(type, Py_tp_free))(self);
  Py_DECREF((PyObject *)type);
}

/* Divides the rows into buckets of a power of two, so that a row's segment is one of a few. */
static int fill_buckets(Map *map) {
  while ((uint64_t)(map->rows - 1) >> map->shift >= BUCKETS_MAX) map->shift++;
  while (map->shift < 62 && (uint64_t)(map->rows - 1) >> map->shift >= 64 * (uint64_t)map->segments) map->shift++;
  const int64_t last = (map->rows - 1) >> map->shift;
  map->buckets = PyMem_Calloc((size_t)last + 2, sizeof *map->buckets);
  if (!map->buckets) return -1;
  uint32_t segment = 0;
  for (int64_t bucket = 0; bucket <= last; bucket++) {
    while (map->starts[segment + 1] <= bucket << map->shift) segment++;
    map->buckets[bucket] = segment;
  }
  map->buckets[last + 1] = map->segments - 1;
  return 0;
}

/* Returns whether every changed row of a directory has a rank and a slot, and lies whole in the memory of its delta:
   `size` bytes from `begin` on, of each of so many deltas. */
static int valid_directory(const Deltas *deltas, size_t slot_count, size_t delta_count, const uintptr_t *begin,
                           const size_t *size, size_t row_bytes) {
  size_t rank = 0;
  for (size_t range = 0; range < deltas->ranges; range++) {
    const size_t first_slot = rank;
    for (size_t block = range * RANGE_BLOCKS; block < (range + 1) * RANGE_BLOCKS; block++) {
      if (deltas->ranks[block] != rank) return 0;
      for (size_t word = 0; word < BLOCK_WORDS; word++)
        rank += (size_t)__builtin_popcountll(deltas->bits[block * BLOCK_WORDS + word]);
    }
    if (rank > slot_count) return 0;
    for (size_t slot = first_slot; slot < rank; slot++) {
      const size_t delta = deltas->slots[slot] >> RANGE_SHIFT, position = deltas->slots[slot] & POSITION_MASK;
      if (delta >= delta_count) return 0;
      const size_t offset = (uintptr_t)deltas->frames[delta * deltas->ranges + range] - begin[delta];
      if (offset > size[delta] || size[delta] - offset < (position + 1) * row_bytes) return 0;
    }
  }
  return rank == slot_count;
}

/* Takes (skipped rows, bits, ranks, slots, frames, (uint8 array of each delta)), as ChangedRanges has them, of a segment
   of so many rows from row `first` of the table on; keeps the arrays in `held`. */
static int fill_deltas(Deltas *deltas, PyObject *given, int64_t first, int64_t rows, size_t row_bytes, PyObject *held) {
  long long skipped_rows;
  PyObject *arrays[4], *files;
  if (!PyArg_ParseTuple(given, "LOOOOO!", &skipped_rows, &arrays[0], &arrays[1], &arrays[2], &arrays[3], &PyTuple_Type,
                        &files))
    return -1;
  PyArrayObject *bits = plain_array(arrays[0], NPY_UINT64, 1), *ranks = plain_array(arrays[1], NPY_UINT32, 1);
  PyArrayObject *slots = plain_array(arrays[2], NPY_UINT32, 1), *frames = plain_array(arrays[3], NPY_UINT64, 2);
  const Py_ssize_t count = PyTuple_Size(files);
  uintptr_t begin[DELTAS_MAX];
  size_t size[DELTAS_MAX];
  int valid = bits && ranks && slots && frames && count <= DELTAS_MAX && PyArray_DIM(frames, 0) == count;
  for (Py_ssize_t delta = 0; valid && delta < count; delta++) {
    PyArrayObject *file = plain_array(PyTuple_GetItem(files, delta), NPY_UINT8, 1);
    valid = file != NULL;
    begin[delta] = valid ? (uintptr_t)PyArray_DATA(file) : 0;
    size[delta] = valid ? (size_t)PyArray_SIZE(file) : 0;
  }
  if (valid) {
    const npy_intp ranges = PyArray_DIM(frames, 1);
    valid = skipped_rows >= 0 && ranges <= NPY_MAX_INTP >> RANGE_SHIFT &&
            skipped_rows <= ((int64_t)ranges << RANGE_SHIFT) - rows && PyArray_SIZE(ranks) == ranges * RANGE_BLOCKS &&
            PyArray_SIZE(bits) == ranges * RANGE_BLOCKS * BLOCK_WORDS;
  }
  if (valid) {
    deltas->shift = skipped_rows - first;
    deltas->bits = PyArray_DATA(bits);
    deltas->ranks = PyArray_DATA(ranks);
    deltas->slots = PyArray_DATA(slots);
    deltas->frames = PyArray_DATA(frames);
    deltas->ranges = (size_t)PyArray_DIM(frames, 1);
    valid = valid_directory(deltas, (size_t)PyArray_SIZE(slots), (size_t)count, begin, size, row_bytes);
  }
  if (!valid) {
    PyErr_SetString(PyExc_ValueError, "deltas need a directory of all rows of their segment and the memory of those changed");
    return -1;
  }
  for (int k = 0; k < 4; k++)
    if (PyList_Append(held, arrays[k]) < 0) return -1;
  return PyList_Append(held, files);
}

/* Takes [(uint8 array, byte offset in it, rows, deltas as of fill_deltas or None)] of each segment; keeps the arrays in
   `held`. */
static int fill_map(Map *map, PyObject *segments, size_t row_bytes, PyObject *held) {
  PyObject *all = PySequence_Tuple(segments);
  if (!all) return -1;
  const Py_ssize_t count = PyTuple_Size(all);
  int failed = -1;
  map->row_bytes = row_bytes;
  map->segments = (uint32_t)count;
  map->origins = PyMem_Calloc((size_t)count + 1, sizeof *map->origins);
  map->starts = PyMem_Calloc((size_t)count + 1, sizeof *map->starts);
  if (!map->origins || !map->starts) {
    PyErr_NoMemory();
    goto end;
  }
  if (count < 1 || count >= UINT32_MAX) {
    PyErr_SetString(PyExc_ValueError, "a table has 1 to 2^32 - 2 segments");
    goto end;
  }
  for (Py_ssize_t segment = 0; segment < count; segment++) {
    PyObject *array, *deltas;
    long long offset, rows;
    if (!PyArg_ParseTuple(PyTuple_GetItem(all, segment), "O!LLO", &PyArray_Type, &array, &offset, &rows, &deltas))
      goto end;
    PyArrayObject *memory = (PyArrayObject *)array;
    if (PyArray_TYPE(memory) != NPY_UINT8 || PyArray_NDIM(memory) != 1 || !PyArray_IS_C_CONTIGUOUS(memory) ||
        rows < 1 || offset < 0 || offset > PyArray_SIZE(memory) ||
        (unsigned long long)rows > (unsigned long long)(PyArray_SIZE(memory) - offset) / row_bytes) {
      PyErr_SetString(PyExc_ValueError, "a segment needs at least a row, whole in a contiguous uint8 array");
      goto end;
    }
    map->origins[segment] = (uintptr_t)PyArray_BYTES(memory) + (uintptr_t)offset - (uintptr_t)map->rows * row_bytes;
    if (deltas != Py_None) {
      if (!map->deltas && !(map->deltas = PyMem_Calloc((size_t)count, sizeof *map->deltas))) {
        PyErr_NoMemory();
        goto end;
      }
      if (fill_deltas(&map->deltas[segment], deltas, map->rows, rows, row_bytes, held)) goto end;
    }
    map->rows += rows;
    map->starts[segment + 1] = map->rows;
    if (PyList_Append(held, array) < 0) goto end;
  }
  failed = count > 1 ? fill_buckets(map) : 0;
  if (failed) PyErr_NoMemory();
end:
  Py_DECREF(all);
  return failed;
}

static PyObject *new_rows(PyTypeObject *type, PyObject *args, PyObject *options) {
  static const char *const names[] = {"float32", "bfloat16", "float16", "int8"};
  const char *dtype;
  Py_ssize_t dim;
  PyObject *values, *scales;
  if (options && PyDict_Size(options)) return PyErr_Format(PyExc_TypeError, "Rows takes no keywords");
  if (!PyArg_ParseTuple(args, "snOO", &dtype, &dim, &values, &scales)) return NULL;
  int stored = 0;
  while (stored < 4 && strcmp(dtype, names[stored])) stored++;
  if (stored == 4 || dim < 1 || dim > PY_SSIZE_T_MAX / 64 || (stored == INT8) != (scales != Py_None))
    return PyErr_Format(PyExc_ValueError, "rows of dtype %s and %zd values, scales given: %d", dtype, dim,
                        scales != Py_None);
  RowsObject *self = (RowsObject *)PyType_GenericAlloc(type, 0);
  if (!self) return NULL;
  const size_t row_bytes = (size_t)(dim * width((Stored)stored));
  self->rows.stored = (Stored)stored;
  self->rows.dim = dim;
  self->rows.cold = COLD_ROWS;
  self->rows.zeros = PyMem_Calloc(1, row_bytes);
  self->held = PyList_New(0);
  if (!self->rows.zeros || !self->held) {
    Py_DECREF((PyObject *)self);
    return PyErr_NoMemory();
  }
  if (fill_map(&self->rows.values, values, row_bytes, self->held) ||
      (stored == INT8 && fill_map(&self->rows.scales, scales, sizeof(float), self->held))) {
    Py_DECREF((PyObject *)self);
    return NULL;
  }
  for (uint32_t segment = 0; segment < self->rows.values.segments; segment++)
    self->rows.straddling |= (self->rows.values.origins[segment] | row_bytes) % LINE != 0;
  if (stored == INT8 && self->rows.scales.rows != self->rows.values.rows) {
    Py_DECREF((PyObject *)self);
    return PyErr_Format(PyExc_ValueError, "there must be a scale for each row");
  }
  return (PyObject *)self;
}

/* Returns an array of one dimension as another type if it has to be cast; a new reference. */
static PyArrayObject *vector_of(PyObject *given, int type) {
  return (PyArrayObject *)PyArray_FROMANY(given, type, 1, 1, NPY_ARRAY_IN_ARRAY);
}

/* Returns `given`, or a new array, as [n, dim] float32 whose rows are contiguous; a new reference. */
static PyArrayObject *matrix_of(const RowsObject *self, npy_intp n, PyObject *given) {
  npy_intp shape[2] = {n, self->rows.dim};
  if (given == Py_None) return (PyArrayObject *)PyArray_SimpleNew(2, shape, NPY_FLOAT32);
  PyArrayObject *out = (PyArrayObject *)given;
  if (!PyArray_Check(given) || PyArray_TYPE(out) != NPY_FLOAT32 || PyArray_NDIM(out) != 2 ||
      PyArray_DIM(out, 0) != n || PyArray_DIM(out, 1) != shape[1] || !PyArray_ISBEHAVED(out) ||
      (n && shape[1] > 1 && PyArray_STRIDE(out, 1) != sizeof(float))) {
    PyErr_Format(PyExc_ValueError, "out must be a writable float32 array [%zd, %zd] whose rows are contiguous",
                 (Py_ssize_t)n, (Py_ssize_t)shape[1]);
    return NULL;
  }
  Py_INCREF(given);
  return out;
}

/* Returns whether to read n rows without the GIL: they are many, or may have to come from a disk. A row, and its scale if
   it has one, begins in a cache line of its own. */
static int without_gil(const Rows *from, npy_intp n) {
  return from->cold || (size_t)n > GIL_BYTES / (from->values.row_bytes + (from->stored == INT8 ? 2 : 1) * LINE);
}

static PyObject *take(RowsObject *self, PyObject *const *args, Py_ssize_t count) {
  if (count != 2) return PyErr_Format(PyExc_TypeError, "take needs rows and out");
  PyArrayObject *rows = vector_of(args[0], NPY_INT64), *out = NULL;
  if (rows && (out = matrix_of(self, PyArray_SIZE(rows), args[1]))) {
    const int64_t *wanted = PyArray_DATA(rows);
    const npy_intp n = PyArray_SIZE(rows), stride = PyArray_STRIDE(out, 0);
    PyThreadState *state = without_gil(&self->rows, n) ? PyEval_SaveThread() : NULL;
    take_rows(&self->rows, wanted, n, PyArray_BYTES(out), stride);
    if (state) PyEval_RestoreThread(state);
  }
  Py_XDECREF((PyObject *)rows);
  return (PyObject *)out;
}

/* Returns whether offsets never fall and stay within `size`. */
static int valid_offsets(const int64_t *offsets, npy_intp n, npy_intp size) {
  int valid = n >= 0 && offsets[0] >= 0 && offsets[n] <= size;
  for (npy_intp bag = 0; bag < n; bag++) valid &= offsets[bag] <= offsets[bag + 1];
  return valid;
}

static PyObject *bags(RowsObject *self, PyObject *const *args, Py_ssize_t count) {
  static const char *const names[] = {"sum", "mean", "sqrtn"};
  if (count != 5) return PyErr_Format(PyExc_TypeError, "bags needs rows, offsets, combiner, weights and out");
  int combiner = 0;
  while (combiner < 3 && !(PyUnicode_Check(args[2]) && !PyUnicode_CompareWithASCIIString(args[2], names[combiner])))
    combiner++;
  if (combiner == 3) return PyErr_Format(PyExc_ValueError, "combiner %R is not sum, mean or sqrtn", args[2]);
  PyArrayObject *rows = vector_of(args[0], NPY_INT64), *offsets = vector_of(args[1], NPY_INT64), *out = NULL;
  PyArrayObject *weights = args[3] == Py_None ? NULL : vector_of(args[3], NPY_FLOAT32);
  if (rows && offsets && (weights || args[3] == Py_None)) {
    const npy_intp n = PyArray_SIZE(offsets) - 1, size = PyArray_SIZE(rows);
    const int64_t *wanted = PyArray_DATA(rows), *ends = PyArray_DATA(offsets);
    const float *factors = weights ? PyArray_DATA(weights) : NULL;
    if (n < 0 || !valid_offsets(ends, n, size) || (weights && PyArray_SIZE(weights) != size))
      PyErr_SetString(PyExc_ValueError, "offsets must never fall nor leave the rows, and weights be as many as those");
    else if ((out = matrix_of(self, n, args[4]))) {
      char *to = PyArray_BYTES(out);
      const npy_intp stride = PyArray_STRIDE(out, 0);
      PyThreadState *state = without_gil(&self->rows, size) ? PyEval_SaveThread() : NULL;
      combine_bags(&self->rows, wanted, ends, n, factors, (Combiner)combiner, to, stride);
      if (state) PyEval_RestoreThread(state);
    }
  }
  Py_XDECREF((PyObject *)rows);
  Py_XDECREF((PyObject *)offsets);
  Py_XDECREF((PyObject *)weights);
  return (PyObject *)out;
}

static PyMethodDef methods[] = {
    {"take", (PyCFunction)(void (*)(void))take, METH_FASTCALL, "take(rows, out | None) -> [n, dim] float32"},
    {"bags", (PyCFunction)(void (*)(void))bags, METH_FASTCALL,
     "bags(rows, offsets, combiner, weights | None, out | None) -> [bags, dim] float32"},
    {NULL, NULL, 0, NULL},
};

static PyType_Slot slots[] = {
    {Py_tp_doc, "Rows(dtype, dim, values, scales | None): segments as [(uint8 array, byte offset, rows, deltas | None)]"},
    {Py_tp_new, new_rows},
    {Py_tp_dealloc, dealloc},
    {Py_tp_methods, methods},
    {0, NULL},
};

static PyType_Spec spec = {
    .name = "_rows.Rows", .basicsize = sizeof(RowsObject), .flags = Py_TPFLAGS_DEFAULT, .slots = slots};

static PyTypeObject *RowsType; /* made by PyInit__rows */

#include "candidates.h"
#include "fingerprints.h"
#include "multi_table.h"

static PyMethodDef functions[] = {
    {"read_tables", (PyCFunction)(void (*)(void))read_tables, METH_FASTCALL,
     "read_tables(readers, names, columns, first, out, start) -> number of the first feature that was not written"},
    {"text_fingerprints", text_fingerprints, METH_O, "text_fingerprints(texts) -> [m] uint64"},
    {"column_fingerprints", (PyCFunction)(void (*)(void))column_fingerprints, METH_FASTCALL,
     "column_fingerprints(memory, offsets) -> [m] uint64"},
    {"mark", (PyCFunction)(void (*)(void))mark, METH_FASTCALL, "mark(bits, positions, value)"},
    {"marked", marked, METH_O, "marked(bits) -> [m] uint32"},
    {"where_marked", (PyCFunction)(void (*)(void))where_marked, METH_FASTCALL,
     "where_marked(bits, positions) -> [n] uint32"},
    {"pack_codes", (PyCFunction)(void (*)(void))pack_codes, METH_FASTCALL, "pack_codes(codes, positions, out)"},
    {NULL, NULL, 0, NULL},
};

static struct PyModuleDef module = {
    PyModuleDef_HEAD_INIT, .m_name = "_rows", .m_size = -1, .m_methods = functions};

PyMODINIT_FUNC PyInit__rows(void) {
  import_array();
  PyObject *created = PyModule_Create(&module);
  if (!created) return NULL;
  RowsType = (PyTypeObject *)PyType_FromSpec(&spec);
  if (!RowsType || PyModule_AddType(created, RowsType) < 0) {
    Py_DECREF(created);
    return NULL;
  }
  return created;
}
