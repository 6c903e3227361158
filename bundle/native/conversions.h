/* Rows of float32 as a bundle holds them, and how far they then lie apart, in one pass. Part of _rows.c. */
#ifndef ROWCAST_CONVERSIONS_H
#define ROWCAST_CONVERSIONS_H

typedef uint32_t Words __attribute__((vector_size(LANES * sizeof(uint32_t)), aligned(4), may_alias));
typedef int32_t Signed __attribute__((vector_size(LANES * sizeof(int32_t)), aligned(4), may_alias));
typedef uint16_t Halves __attribute__((vector_size(LANES * sizeof(uint16_t)), aligned(1), may_alias));
typedef int8_t Bytes __attribute__((vector_size(LANES), aligned(1), may_alias));

#define TINY_SCALE 0x1p-126f /* a row whose scale would be less, a subnormal number, becomes zeros */
#define ROWS 32
#define WHOLE 0x1.8p23f      /* added to a number below 2^22 it leaves the nearest whole one, ties to even */

/* Of a row, in lanes: the sums of x * x, of x * d and of d * d, and the largest |d|; d = what is read - x. */
typedef struct {
  Lanes squares, products, differences, largest;
} Apart;

INLINE Lanes magnitude(Lanes x) { return (Lanes)((Words)x & 0x7fffffffu); }

/* A lane of a where a > b, else of b: what is no number is passed over, and shows in the sums. */
INLINE Lanes larger(Lanes a, Lanes b) {
  const Signed above = a > b;
  return (Lanes)(((Signed)a & above) | ((Signed)b & ~above));
}

INLINE void compare(Lanes x, Lanes read, Apart *apart) {
  const Lanes d = read - x;
  apart->squares += x * x;
  apart->products += x * d;
  apart->differences += d * d;
  apart->largest = larger(magnitude(d), apart->largest);
}

/* The nearest bfloat16, ties to even, as the upper half of each word. */
INLINE Words to_bfloat16(Lanes x) {
  const Words bits = (Words)x;
  return bits + 0x7fff + ((bits >> 16) & 1);
}

/* The nearest half, ties to even, in the lower half of each word; read: its value.
   Source: F. Giesen, float_to_half_fast3_rtne (https://gist.github.com/rygorous/2156668). */
INLINE Words to_half(Lanes x, Lanes *read) {
  const Words sign = (Words)x & 0x80000000u, bits = (Words)x ^ sign;
  /* Added to 0.5, a value below the least normal half is rounded where that half's last bit is. */
  const Lanes raised = (Lanes)bits + 0.5f;
  const Words subnormal = (Words)raised - 0x3f000000u;
  Words normal = (bits + 0xfff + ((bits >> 13) & 1)) & ~0x1fffu;
  const Signed small = (Signed)bits < (113 << 23), beyond = (Signed)normal >= (143 << 23);
  normal = (normal & ~(Words)beyond) | ((Words)beyond & 0x7f800000u);
  const Words half = ((normal & ~(Words)beyond) - ((Words)~beyond & (112u << 23))) >> 13 | ((Words)beyond & 0x7c00);
  *read = (Lanes)((((Words)(raised - 0.5f) & (Words)small) | (normal & ~(Words)small)) | sign);
  return ((subnormal & (Words)small) | (half & ~(Words)small)) | sign >> 16;
}

/* Lanes are folded in registers: by way of memory a row of 16 values took 10 ns instead of 6. */
typedef float Eight __attribute__((vector_size(8 * sizeof(float)), may_alias));
typedef float Four __attribute__((vector_size(4 * sizeof(float)), may_alias));

/* Does what `sum_of` does, in the same order. */
INLINE float added(Lanes lanes) {
  Eight eight[2];
  memcpy(eight, &lanes, sizeof eight);
  eight[0] += eight[1];
  Four four[2];
  memcpy(four, &eight[0], sizeof four);
  four[0] += four[1];
  return (four[0][0] + four[0][2]) + (four[0][1] + four[0][3]);
}

/* Of lanes that are not negative: so are numbers ordered as their bits are. */
INLINE float largest_of(Lanes lanes) {
  typedef int32_t EightBits __attribute__((vector_size(8 * sizeof(int32_t)), may_alias));
  EightBits eight[2], above;
  memcpy(eight, &lanes, sizeof eight);
  above = eight[0] > eight[1];
  eight[0] = (eight[0] & above) | (eight[1] & ~above);
  int32_t bits = 0;
  for (int lane = 0; lane < 8; lane++) bits = eight[0][lane] > bits ? eight[0][lane] : bits;
  float largest;
  memcpy(&largest, &bits, sizeof largest);
  return largest;
}

/* The last values of a row, fewer than lanes: whole lanes are read, and written, as long as there are so many before the
   end of all rows. What that writes too far is written again, by the rows that follow. */
typedef struct {
  ptrdiff_t count;
  Words kept; /* all ones in the lanes that are the row's own */
  const float *end; /* of all rows */
} Tail;

INLINE Tail tail_of(const float *values, ptrdiff_t n, ptrdiff_t dim) {
  Tail rest = {dim % LANES, {0}, values + n * dim};
  for (int lane = 0; lane < LANES; lane++) rest.kept[lane] = lane < rest.count ? 0xffffffffu : 0;
  return rest;
}

INLINE Lanes some_of(const float *from, const Tail *rest) {
  if (rest->end - from >= LANES) return (Lanes)(*(const Words *)from & rest->kept);
  Lanes x = {0};
  memcpy(&x, from, (size_t)rest->count * sizeof *from);
  return x;
}

INLINE void convert_some(Lanes x, Stored target, float scale, char *to, ptrdiff_t count, Apart *apart) {
  Lanes read = {0};
  if (target == INT8) {
    const Lanes whole = scale > 0 ? x / scale + WHOLE : read + WHOLE;
    const Bytes bytes = __builtin_convertvector((Signed)whole, Bytes);
    memcpy(to, &bytes, (size_t)count);
    read = (whole - WHOLE) * scale;
  } else {
    const Words words = target == BFLOAT16 ? to_bfloat16(x) : to_half(x, &read);
    const Halves halves = __builtin_convertvector(target == BFLOAT16 ? words >> 16 : words, Halves);
    memcpy(to, &halves, (size_t)count * sizeof(uint16_t));
    if (target == BFLOAT16) read = (Lanes)(words & 0xffff0000u);
  }
  compare(x, read, apart);
}

INLINE float scale_of(const float *row, ptrdiff_t dim, const Tail *rest) {
  const ptrdiff_t whole = dim - rest->count;
  Lanes most = {0};
  for (ptrdiff_t from = 0; from < whole; from += LANES) most = larger(magnitude(*(const Lanes *)(row + from)), most);
  if (rest->count) most = larger(magnitude(some_of(row + whole, rest)), most);
  const float scale = largest_of(most) / 127;
  return scale < TINY_SCALE ? 0 : scale;
}

INLINE float convert_by(const float *values, ptrdiff_t n, ptrdiff_t dim, Stored target, char *to, float *scales,
                        double *apart) {
  const Tail rest = tail_of(values, n, dim);
  const ptrdiff_t whole = dim - rest.count, bytes = target == INT8 ? 1 : 2;
  Apart all = {{0}, {0}, {0}, {0}};
  for (ptrdiff_t k = 0; k < n; k++, values += dim) {
    /* Some rows at a time, while they are in the cache: each has to wait for its largest value. */
    if (target == INT8 && k % ROWS == 0)
      for (ptrdiff_t row = k; row < n && row < k + ROWS; row++) scales[row] = scale_of(values + (row - k) * dim, dim, &rest);
    const float scale = target == INT8 ? scales[k] : 0;
    all.squares = all.products = all.differences = (Lanes){0};
    for (ptrdiff_t from = 0; from < whole; from += LANES, to += LANES * bytes)
      convert_some(*(const Lanes *)(values + from), target, scale, to, LANES, &all);
    if (rest.count) {
      const Lanes x = some_of(values + whole, &rest);
      if (rest.end - (values + whole) >= LANES) convert_some(x, target, scale, to, LANES, &all);
      else convert_some(x, target, scale, to, rest.count, &all);
      to += rest.count * bytes;
    }
    apart[k] = added(all.squares), apart[n + k] = added(all.products), apart[2 * n + k] = added(all.differences);
  }
  return largest_of(all.largest);
}

/* Converts [n, dim] values; returns the largest difference. apart: [3, n], see Apart. */
EACH_CPU static float convert(const float *values, ptrdiff_t n, ptrdiff_t dim, Stored target, char *to, float *scales,
                              double *apart) {
  if (target == BFLOAT16) return convert_by(values, n, dim, BFLOAT16, to, scales, apart);
  if (target == FLOAT16) return convert_by(values, n, dim, FLOAT16, to, scales, apart);
  return convert_by(values, n, dim, INT8, to, scales, apart);
}

static PyObject *converted(PyObject *Py_UNUSED(self), PyObject *const *args, Py_ssize_t count) {
  static const struct {
    const char *name;
    Stored stored;
    int type;
  } targets[] = {{"bfloat16", BFLOAT16, NPY_UINT16}, {"float16", FLOAT16, NPY_HALF}, {"int8", INT8, NPY_INT8}};
  if (count != 2) return PyErr_Format(PyExc_TypeError, "converted needs values and a dtype");
  int kind = 0;
  while (kind < 3 && !(PyUnicode_Check(args[1]) && !PyUnicode_CompareWithASCIIString(args[1], targets[kind].name)))
    kind++;
  if (kind == 3) return PyErr_Format(PyExc_ValueError, "dtype %R is not bfloat16, float16 or int8", args[1]);
  PyArrayObject *values = (PyArrayObject *)PyArray_FROMANY(args[0], NPY_FLOAT32, 2, 2, NPY_ARRAY_IN_ARRAY);
  if (!values) return NULL;
  const npy_intp n = PyArray_DIM(values, 0), shape[2] = {3, n};
  PyObject *stored = PyArray_SimpleNew(2, PyArray_DIMS(values), targets[kind].type);
  PyObject *scales = targets[kind].stored == INT8 ? PyArray_SimpleNew(1, &n, NPY_FLOAT32) : Py_NewRef(Py_None);
  PyObject *apart = PyArray_SimpleNew(2, shape, NPY_DOUBLE), *made = NULL;
  if (stored && scales && apart) {
    char *to = PyArray_BYTES((PyArrayObject *)stored);
    float *factors = scales == Py_None ? NULL : PyArray_DATA((PyArrayObject *)scales);
    double *sums = PyArray_DATA((PyArrayObject *)apart);
    float largest;
    Py_BEGIN_ALLOW_THREADS;
    largest = convert(PyArray_DATA(values), n, PyArray_DIM(values, 1), targets[kind].stored, to, factors, sums);
    Py_END_ALLOW_THREADS;
    made = Py_BuildValue("OOOd", stored, scales, apart, (double)largest);
  }
  Py_XDECREF(stored);
  Py_XDECREF(scales);
  Py_XDECREF(apart);
  Py_DECREF(values);
  return made;
}
#endif
