/* The columns of a protobuf request that are packed numbers, straight from its bytes. Part of _rows.c.

   Reads map<string, Column> entries in the one form that every library writes and leaves all else to protobuf: what is
   odd or damaged stays among the bytes that it gets. So nothing is refused here, and nothing is taken that it refuses. */
#ifndef ROWCAST_WIRE_H
#define ROWCAST_WIRE_H

#define MAPS_MAX 4

enum { VARINT = 0, EIGHT_BYTES = 1, DELIMITED = 2, FOUR_BYTES = 5 };         /* types of fields */
enum { INT64S = 1, INT32S = 2, FLOAT32S = 3, OFFSETS = 5, WEIGHTS = 6 }; /* fields of a Column */

typedef struct {
  const uint8_t *at, *end;
} Span;

/* Reads a number of at most five bytes; tells whether there is one. */
static int read_number(Span *from, uint64_t *number) {
  *number = 0;
  for (int shift = 0; shift < 35 && from->at < from->end; shift += 7) {
    const uint8_t byte = *from->at++;
    *number |= (uint64_t)(byte & 0x7f) << shift;
    if (byte < 0x80) return 1;
  }
  return 0;
}

/* Reads a length and as many bytes; tells whether they are there. */
static int read_delimited(Span *from, Span *into) {
  uint64_t size;
  if (!read_number(from, &size) || size > (uint64_t)(from->end - from->at)) return 0;
  *into = (Span){from->at, from->at + size};
  from->at += size;
  return 1;
}

/* Reads a tag and a length of one field and its bytes; tells whether it is that. */
static int read_field(Span *from, uint64_t field, Span *into) {
  uint64_t tag;
  return read_number(from, &tag) && tag == (field << 3 | DELIMITED) && read_delimited(from, into);
}

/* Passes over what follows a tag; tells whether it is whole. */
static int pass(Span *from, unsigned type) {
  const ptrdiff_t left = from->end - from->at;
  Span passed;
  if (type == DELIMITED) return read_delimited(from, &passed);
  if (type == EIGHT_BYTES || type == FOUR_BYTES) {
    const ptrdiff_t size = type == EIGHT_BYTES ? 8 : 4;
    if (left >= size) from->at += size;
    return left >= size;
  }
  for (int k = 0; type == VARINT && k < 10 && k < left; k++)
    if (*from->at++ < 0x80) return 1;
  return 0;
}

/* Returns numbers as a read-only array, None if there are none of an optional field; NULL: an exception is set. */
static PyObject *array_of(Span bytes, int type, int widen, int optional) {
  const size_t size = (size_t)(bytes.end - bytes.at);
  if (optional && !size) Py_RETURN_NONE;
  npy_intp n = (npy_intp)(size / (type == NPY_FLOAT32 || widen ? 4 : 8));
  PyObject *made = PyArray_SimpleNew(1, &n, type);
  if (!made) return NULL;
  char *to = PyArray_DATA((PyArrayObject *)made);
  if (widen) {
    for (npy_intp k = 0; k < n; k++) {
      int32_t narrow;
      memcpy(&narrow, bytes.at + 4 * k, 4);
      ((int64_t *)to)[k] = narrow;
    }
  } else if (size) {
    memcpy(to, bytes.at, size);
  }
  PyArray_CLEARFLAGS((PyArrayObject *)made, NPY_ARRAY_WRITEABLE);
  return made;
}

/* Finds the parts of a Column; returns which of its fields holds the values, 0 if it is no plain one. */
static int parts_of(Span column, Span parts[WEIGHTS + 1]) {
  int values = 0;
  memset(parts, 0, (WEIGHTS + 1) * sizeof *parts);
  while (column.at < column.end) {
    uint64_t tag;
    if (!read_number(&column, &tag) || (tag & 7) != DELIMITED) return 0;
    const uint64_t field = tag >> 3;
    const int is_values = field >= INT64S && field <= FLOAT32S;
    if ((is_values && values) || !(is_values || field == OFFSETS || field == WEIGHTS) || parts[field].at) return 0;
    if (!read_delimited(&column, &parts[field])) return 0;
    if ((parts[field].end - parts[field].at) % (field == INT64S ? 8 : 4)) return 0;
    if (is_values) values = (int)field;
  }
  return values;
}

typedef enum { FAILED = -1, STRANGE, LEFT, TAKEN } Outcome;

/* Makes a tuple of such a type of the parts of a Column. */
static PyObject *column_of(Span parts[WEIGHTS + 1], int values, PyTypeObject *type) {
  PyObject *made = type->tp_alloc(type, 3), *offsets = NULL, *weights = NULL;
  if (!made) return NULL;
  PyObject *numbers = array_of(parts[values], values == FLOAT32S ? NPY_FLOAT32 : NPY_INT64, values == INT32S, 0);
  if (numbers) offsets = array_of(parts[OFFSETS], NPY_INT64, 1, 1);
  if (offsets) weights = array_of(parts[WEIGHTS], NPY_FLOAT32, 0, 1);
  PyTuple_SET_ITEM(made, 0, numbers);
  PyTuple_SET_ITEM(made, 1, offsets);
  PyTuple_SET_ITEM(made, 2, weights);
  if (!weights) Py_CLEAR(made);
  return made;
}

/* Puts an entry of a map among those found, the last of a name, as in any map of protobuf. LEFT: its value is no plain
   column. STRANGE: the entry is not just a name and a value; nothing can be said of it. */
static Outcome take_entry(Span entry, PyTypeObject *type, PyObject *found) {
  Span name, column, parts[WEIGHTS + 1];
  if (!read_field(&entry, 1, &name) || !read_field(&entry, 2, &column) || entry.at < entry.end) return STRANGE;
  PyObject *key = PyUnicode_DecodeUTF8((const char *)name.at, name.end - name.at, NULL);
  if (!key) {
    if (!PyErr_ExceptionMatches(PyExc_UnicodeDecodeError)) return FAILED;
    PyErr_Clear();
    return STRANGE;
  }
  Outcome outcome = FAILED;
  const int values = parts_of(column, parts);
  if (values) {
    PyObject *made = column_of(parts, values, type);
    if (made && PyDict_SetItem(found, key, made) == 0) outcome = TAKEN;
    Py_XDECREF(made);
  } else {
    const int before = PyDict_Contains(found, key);
    if (before >= 0 && (!before || PyDict_DelItem(found, key) == 0)) outcome = LEFT;
  }
  Py_DECREF(key);
  return outcome;
}

/* plain_columns(body, numbers, column): (columns by name of each of the maps with these numbers, the body without them);
   None if the body is in no form that this knows. A column is of the type `column`, a tuple of values, offsets and
   weights. A name that is found and is in the rest as well came last where it was found. */
static PyObject *plain_columns(PyObject *module, PyObject *const *args, Py_ssize_t count) {
  (void)module;
  if (count != 3 || !PyBytes_Check(args[0]) || !PyTuple_Check(args[1]) || PyTuple_GET_SIZE(args[1]) > MAPS_MAX ||
      !PyType_Check(args[2]) || !PyType_IsSubtype((PyTypeObject *)args[2], &PyTuple_Type) ||
      ((PyTypeObject *)args[2])->tp_basicsize != PyTuple_Type.tp_basicsize) {
    PyErr_SetString(PyExc_TypeError, "plain_columns takes bytes, a tuple of at most 4 numbers, and a kind of tuple");
    return NULL;
  }
  if (__BYTE_ORDER__ != __ORDER_LITTLE_ENDIAN__) Py_RETURN_NONE;
  const Py_ssize_t maps = PyTuple_GET_SIZE(args[1]), size = PyBytes_GET_SIZE(args[0]);
  uint64_t tags[MAPS_MAX];
  PyObject *made = PyTuple_New(maps + 1), *rest = PyBytes_FromStringAndSize(NULL, size);
  if (!made || !rest) goto failed;
  for (Py_ssize_t map = 0; map < maps; map++) {
    tags[map] = (uint64_t)PyLong_AsUnsignedLong(PyTuple_GET_ITEM(args[1], map)) << 3 | DELIMITED;
    PyObject *found = PyDict_New();
    if (!found) goto failed;
    PyTuple_SET_ITEM(made, map, found);
  }
  if (PyErr_Occurred()) goto failed;
  Span body = {(const uint8_t *)PyBytes_AS_STRING(args[0]), (const uint8_t *)PyBytes_AS_STRING(args[0]) + size};
  char *left = PyBytes_AS_STRING(rest);
  while (body.at < body.end) {
    const uint8_t *from = body.at;
    uint64_t tag;
    if (!read_number(&body, &tag)) goto unknown;
    Py_ssize_t map = 0;
    while (map < maps && tags[map] != tag) map++;
    if (map < maps) {
      Span entry;
      if (!read_delimited(&body, &entry)) goto unknown;
      const Outcome outcome = take_entry(entry, (PyTypeObject *)args[2], PyTuple_GET_ITEM(made, map));
      if (outcome == FAILED) goto failed;
      if (outcome == STRANGE) goto unknown;
      if (outcome == TAKEN) continue;
    } else if (!pass(&body, tag & 7)) {
      goto unknown;
    }
    memcpy(left, from, (size_t)(body.at - from));
    left += body.at - from;
  }
  const Py_ssize_t over = left - PyBytes_AS_STRING(rest);
  if (_PyBytes_Resize(&rest, over) < 0) goto failed;
  PyTuple_SET_ITEM(made, maps, rest);
  return made;
unknown:
  Py_DECREF(made);
  Py_DECREF(rest);
  Py_RETURN_NONE;
failed:
  Py_XDECREF(made);
  Py_XDECREF(rest);
  return NULL;
}

#endif
