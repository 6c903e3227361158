/* Integers of a Python list, and those in the lists of a JSON body, in one pass. Part of _rows.c.

   Of a body the long lists of integers in one of its members are taken, and a 0 is left in the place of each; what is anything
   else stays as it came, for a JSON library to read or refuse. A value stands for a value: the rest is JSON just if the
   body is. */
#ifndef ROWCAST_LISTS_H
#define ROWCAST_LISTS_H

#define LIST_MIN 64   /* integers: a list of fewer is no faster taken than left */
#define DIGITS_MAX 18 /* of an integer: any of so many fits int64 */
/* The part of a body that is passed over before the rest is given up: what is passed over is read twice. */
#define PASSED_PART 4

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

/* A body as far as it was read, and what is left of it to pass over. */
typedef struct {
  Span text;
  ptrdiff_t left;
} Reading;

static int is_blank(uint8_t byte) { return byte == ' ' || byte == '\n' || byte == '\r' || byte == '\t'; }

static int is_digit(uint8_t byte) { return byte >= '0' && byte <= '9'; }

static void pass_blanks(Span *text) {
  while (text->at < text->end && *text->at <= ' ' && is_blank(*text->at)) text->at++;
}

/* Passes blanks, this byte and the blanks behind it; tells whether it is there. */
static int pass_byte(Span *text, uint8_t byte) {
  pass_blanks(text);
  if (text->at == text->end || *text->at != byte) return 0;
  text->at++;
  pass_blanks(text);
  return 1;
}

/* Passes a string; tells whether it is whole. */
static int pass_string(Span *text) {
  if (text->at == text->end || *text->at++ != '"') return 0;
  while (text->at < text->end) {
    const uint8_t byte = *text->at++;
    if (byte == '"') return 1;
    if (byte == '\\' && text->at < text->end) text->at++;
  }
  return 0;
}

/* Passes the name of a member and its colon; returns the name, NULL if it is none, or one with escapes. */
static PyObject *name_of(Span *text) {
  const char *from = (const char *)text->at + 1;
  if (!pass_string(text)) return NULL;
  const Py_ssize_t size = (const char *)text->at - 1 - from;
  if (memchr(from, '\\', (size_t)size) || !pass_byte(text, ':')) return NULL;
  PyObject *name = PyUnicode_DecodeUTF8(from, size, NULL);
  if (!name && PyErr_ExceptionMatches(PyExc_UnicodeDecodeError)) PyErr_Clear();
  return name;
}

/* Passes over a value, whatever it holds; tells whether it ends before there is too much of it. */
static int pass_value(Reading *body) {
  const uint8_t *from = body->text.at;
  Span text = {from, body->text.end - from > body->left ? from + body->left : body->text.end};
  int whole = 0;
  for (int64_t depth = 0; !whole && text.at < text.end;) {
    const uint8_t byte = *text.at;
    const int closes = byte == ']' || byte == '}';
    if (depth == 0 && (closes || byte == ',')) break; /* of what the value is in */
    if (byte == '"') {
      if (!pass_string(&text)) return 0;
    } else {
      text.at++;
      depth += (byte == '[' || byte == '{') - closes;
    }
    whole = depth == 0 && (closes || byte == '"');
  }
  body->left -= text.at - from;
  body->text.at = text.at;
  return text.at > from && text.at < text.end;
}

/* Reads the digits that come, eight at most; returns how many there are. Eight bytes must be readable. */
static ptrdiff_t read_eight(const uint8_t *at, int64_t *number) {
  uint64_t digits;
  memcpy(&digits, at, sizeof digits);
  digits ^= UINT64_C(0x3030303030303030);
  /* The first byte above 9 gets its highest bit; what carries from it changes only those behind it. */
  const uint64_t others = (digits | (digits + UINT64_C(0x7676767676767676))) & UINT64_C(0x8080808080808080);
  const ptrdiff_t count = others ? __builtin_ctzll(others) / 8 : 8;
  if (!count) return 0;
  digits <<= 8 * (8 - count); /* the first is the lowest byte: zeros come before it */
  digits = (digits * (10 * 256 + 1)) >> 8 & UINT64_C(0x00ff00ff00ff00ff);
  digits = (digits * (100 * 65536 + 1)) >> 16 & UINT64_C(0x0000ffff0000ffff);
  *number = (int64_t)((digits * (UINT64_C(10000) * 4294967296 + 1)) >> 32);
  return count;
}

/* Reads an integer of few digits, or the first of many; tells whether there is one. */
static int read_integer(Span *text, int64_t *number) {
  const int negative = text->at < text->end && *text->at == '-';
  const uint8_t *from = text->at += negative;
  int64_t found = 0;
  if (text->end - from >= 8) text->at += read_eight(from, &found);
  if (text->at - from == 8 || text->at == from)
    while (text->at < text->end && text->at - from < DIGITS_MAX && is_digit(*text->at))
      found = found * 10 + (*text->at++ - '0');
  const ptrdiff_t digits = text->at - from;
  *number = negative ? -found : found;
  return digits == 1 || (digits && *from != '0');
}

static npy_intp commas(const Span *text) {
  ptrdiff_t found = 0;
  for (const uint8_t *at = text->at; at < text->end;) {
    const ptrdiff_t left = text->end - at, size = left < UINT8_MAX ? left : UINT8_MAX;
    uint8_t some = 0; /* so that the compiler counts many at once */
    for (ptrdiff_t k = 0; k < size; k++) some = (uint8_t)(some + (at[k] == ','));
    found += some;
    at += size;
  }
  return found;
}

/* Passes a long list of integers and returns them; NULL, and nothing is passed: it is short or holds anything else. */
static PyObject *integers_of(Span *text) {
  Span list = *text;
  if (!pass_byte(&list, '[') || list.at == list.end || !(*list.at == '-' || is_digit(*list.at))) return NULL;
  list.end = memchr(list.at, ']', (size_t)(list.end - list.at));
  if (!list.end) return NULL;
  npy_intp n = 1 + commas(&list);
  if (n < LIST_MIN) return NULL;
  PyObject *made = PyArray_SimpleNew(1, &n, NPY_INT64);
  if (!made) return NULL;
  int64_t *to = PyArray_DATA((PyArrayObject *)made);
  int sound = 1;
  for (npy_intp k = 0; sound && k < n; k++) sound = (!k || pass_byte(&list, ',')) && read_integer(&list, to + k);
  pass_blanks(&list);
  if (!sound || list.at < list.end) {
    Py_DECREF(made);
    return NULL;
  }
  text->at = list.end + 1;
  return made;
}

/* A body without what was taken: what was read since the last of it is yet to be copied. */
typedef struct {
  const uint8_t *from;
  char *to;
} Rest;

static void copy_up_to(Rest *rest, const uint8_t *end) {
  memcpy(rest->to, rest->from, (size_t)(end - rest->from));
  rest->to += end - rest->from;
  rest->from = end;
}

/* Takes the long lists of integers out of an object, by name, the last of each; tells whether it was read to its end, and
   none is followed by anything else of its name. */
static int take_lists(Reading *body, PyObject *taken, Rest *rest) {
  if (!pass_byte(&body->text, '{')) return 0;
  do {
    PyObject *name = name_of(&body->text);
    if (!name) return 0;
    const uint8_t *value = body->text.at;
    PyObject *list = integers_of(&body->text);
    int sound = !PyErr_Occurred();
    if (list) {
      sound = PyDict_SetItem(taken, name, list) == 0;
      copy_up_to(rest, value);
      *rest->to++ = '0';
      rest->from = body->text.at;
    } else if (sound) {
      sound = pass_value(body) && PyDict_Contains(taken, name) == 0;
    }
    Py_DECREF(name);
    Py_XDECREF(list);
    if (!sound) return 0;
  } while (pass_byte(&body->text, ','));
  return pass_byte(&body->text, '}');
}

/* Takes the lists out of one member of a body; tells whether this is an object that has it once and was read to its end. */
static int take_member(Reading *body, PyObject *member, PyObject *taken, Rest *rest) {
  int times = 0;
  if (!pass_byte(&body->text, '{')) return 0;
  do {
    PyObject *name = name_of(&body->text);
    if (!name) return 0;
    const int is_member = PyUnicode_Compare(name, member) == 0;
    Py_DECREF(name);
    times += is_member;
    if (times > 1 || !(is_member ? take_lists(body, taken, rest) : pass_value(body))) return 0;
  } while (pass_byte(&body->text, ','));
  return times && pass_byte(&body->text, '}');
}

/* plain_lists(body, member): ([n] int64 of each long list of integers in that member by its name, the body with a 0 for
   each); None if there is none, or the body is in no form that this knows. */
static PyObject *plain_lists(PyObject *module, PyObject *const *args, Py_ssize_t count) {
  (void)module;
  if (count != 2 || !PyBytes_Check(args[0]) || !PyUnicode_Check(args[1]))
    return PyErr_Format(PyExc_TypeError, "plain_lists takes bytes and a name");
  const Py_ssize_t size = PyBytes_GET_SIZE(args[0]);
  const uint8_t *from = (const uint8_t *)PyBytes_AS_STRING(args[0]);
  PyObject *taken = PyDict_New(), *left = PyBytes_FromStringAndSize(NULL, size), *made = NULL;
  if (taken && left) {
    Reading body = {{from, from + size}, size / PASSED_PART};
    Rest rest = {from, PyBytes_AS_STRING(left)};
    if (take_member(&body, args[1], taken, &rest) && PyDict_GET_SIZE(taken)) {
      copy_up_to(&rest, from + size);
      if (_PyBytes_Resize(&left, rest.to - PyBytes_AS_STRING(left)) == 0) made = PyTuple_Pack(2, taken, left);
    } else if (!PyErr_Occurred()) {
      made = Py_NewRef(Py_None);
    }
  }
  Py_XDECREF(taken);
  Py_XDECREF(left);
  return made;
}

#endif
