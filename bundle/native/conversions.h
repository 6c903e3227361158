/* Rows of float32 as a bundle holds them, and how far they then lie apart, in one pass. Part of _rows.c. */
#ifndef ROWCAST_CONVERSIONS_H
#define ROWCAST_CONVERSIONS_H

typedef uint32_t Words __attribute__((vector_size(LANES * sizeof(uint32_t)), aligned(4), may_alias));
typedef int32_t Signed __attribute__((vector_size(LANES * sizeof(int32_t)), aligned(4), may_alias));

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

/* Lanes are folded to four in registers, and the four of some rows at a time where they lie beside each other: row by
   row that took half of the time of a row of 8 values. */
typedef float Eight __attribute__((vector_size(8 * sizeof(float)), may_alias));
typedef float Four __attribute__((vector_size(4 * sizeof(float)), may_alias));

typedef struct {
  float of[ROWS][4];
} Fours;

INLINE void add_up(Lanes lanes, float to[4]) {
  Eight eight[2];
  memcpy(eight, &lanes, sizeof eight);
  eight[0] += eight[1];
  Four four[2];
  memcpy(four, &eight[0], sizeof four);
  four[0] += four[1];
  memcpy(to, four, sizeof *four);
}

/* Of lanes that are not negative: so are numbers ordered as their bits are. */
INLINE void find_largest(Lanes lanes, float to[4]) {
  typedef int32_t EightBits __attribute__((vector_size(8 * sizeof(int32_t)), may_alias));
  typedef int32_t FourBits __attribute__((vector_size(4 * sizeof(int32_t)), may_alias));
  EightBits eight[2], over;
  memcpy(eight, &lanes, sizeof eight);
  over = eight[0] > eight[1];
  eight[0] = (eight[0] & over) | (eight[1] & ~over);
  FourBits four[2], above;
  memcpy(four, &eight[0], sizeof four);
  above = four[0] > four[1];
  four[0] = (four[0] & above) | (four[1] & ~above);
  memcpy(to, four, sizeof *four);
}

INLINE float larger_of(float a, float b) { return a > b ? a : b; }

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
    int8_t bytes[LANES];
    for (int lane = 0; lane < LANES; lane++) bytes[lane] = (int8_t)((Signed)whole)[lane];
    memcpy(to, bytes, (size_t)count);
    read = (whole - WHOLE) * scale;
  } else {
    const Words words = target == BFLOAT16 ? to_bfloat16(x) : to_half(x, &read);
    uint16_t halves[LANES];
    for (int lane = 0; lane < LANES; lane++) halves[lane] = (uint16_t)(target == BFLOAT16 ? words >> 16 : words)[lane];
    memcpy(to, halves, (size_t)count * sizeof *halves);
    if (target == BFLOAT16) read = (Lanes)(words & 0xffff0000u);
  }
  compare(x, read, apart);
}

INLINE void find_scales(const float *rows, ptrdiff_t count, ptrdiff_t dim, const Tail *rest, float *scales) {
  const ptrdiff_t whole = dim - rest->count;
  Fours most;
  for (ptrdiff_t k = 0; k < count; k++, rows += dim) {
    Lanes most_of = {0};
    for (ptrdiff_t from = 0; from < whole; from += LANES)
      most_of = larger(magnitude(*(const Lanes *)(rows + from)), most_of);
    if (rest->count) most_of = larger(magnitude(some_of(rows + whole, rest)), most_of);
    find_largest(most_of, most.of[k]);
  }
  for (ptrdiff_t k = 0; k < count; k++) {
    const float *of = most.of[k];
    const float scale = larger_of(larger_of(of[0], of[1]), larger_of(of[2], of[3])) / 127;
    scales[k] = scale < TINY_SCALE ? 0 : scale;
  }
}

/* Of rows whose sums float32 holds, how far they lie from what they were: row k of each block adds to place k, so that
   every processor adds in the same order. */
typedef struct {
  double squares[ROWS], cosines[ROWS], cosine_min[ROWS];
} Told;

/* Sums of squares within these are right in float32. */
#define SQUARES_LOW 1e-30f
#define SQUARES_HIGH 1e30f

/* Takes the sums of up to ROWS rows, see Apart; odd: 1 of those that are left out, to be measured in float64. */
INLINE void tell(const Fours sums[3], ptrdiff_t count, Told *restrict told, uint8_t *restrict odd) {
  float each[3][ROWS];
  for (int sum = 0; sum < 3; sum++)
    for (ptrdiff_t k = 0; k < ROWS; k++) {
      const float *of = sums[sum].of[k];
      each[sum][k] = (of[0] + of[2]) + (of[1] + of[3]);
    }
  for (ptrdiff_t k = 0; k < ROWS; k++) {
    const double squares = each[0][k], products = each[1][k], differences = each[2][k];
    const double other = squares + 2 * products + differences, length = squares * (other > 0 ? other : 0);
    const double root = sqrt(length), toward = (squares + products) / (root > 0 ? root : 1);
    const double cosine = root > 0 ? (toward < 1 ? toward : 1) : 0;
    const int right = (squares >= SQUARES_LOW) & (squares <= SQUARES_HIGH) & (differences < INFINITY) & (k < count);
    told->squares[k] += right ? differences : 0;
    told->cosines[k] += right ? cosine : 0;
    told->cosine_min[k] = right & (cosine < told->cosine_min[k]) ? cosine : told->cosine_min[k];
    odd[k] = !right;
  }
}

INLINE int all_zeros(const float *row, ptrdiff_t dim) {
  for (ptrdiff_t column = 0; column < dim; column++)
    if (row[column] != 0) return 0;
  return 1;
}

/* Fills `odd` with the numbers of the rows that `told` leaves out; returns how many. Rows of zeros are told after all:
   they are parallel to what they became, and there may be many. */
INLINE ptrdiff_t left_out(const uint8_t *out, const float *values, ptrdiff_t first, ptrdiff_t count, ptrdiff_t dim,
                          Told *told, int64_t *odd) {
  ptrdiff_t found = 0;
  for (ptrdiff_t k = 0; k < count; k++) {
    if (!out[k]) continue;
    if (all_zeros(values + k * dim, dim)) told->cosines[k] += 1;
    else odd[found++] = first + k;
  }
  return found;
}

INLINE float convert_by(const float *values, ptrdiff_t n, ptrdiff_t dim, Stored target, char *to, float *scales,
                        Told *told, int64_t *odd, ptrdiff_t *odds) {
  const Tail rest = tail_of(values, n, dim);
  const ptrdiff_t whole = dim - rest.count, bytes = target == INT8 ? 1 : 2;
  Apart all = {{0}, {0}, {0}, {0}};
  Fours sums[3] = {0};
  uint8_t out[ROWS];
  /* Some rows at a time, while they are in the cache: each has to wait for its largest value. */
  for (ptrdiff_t first = 0; first < n; first += ROWS) {
    const float *block = values + first * dim;
    const ptrdiff_t count = n - first < ROWS ? n - first : ROWS;
    if (target == INT8) find_scales(block, count, dim, &rest, scales + first);
    for (ptrdiff_t k = 0; k < count; k++) {
      const float *row = block + k * dim;
      const float scale = target == INT8 ? scales[first + k] : 0;
      all.squares = all.products = all.differences = (Lanes){0};
      for (ptrdiff_t from = 0; from < whole; from += LANES, to += LANES * bytes)
        convert_some(*(const Lanes *)(row + from), target, scale, to, LANES, &all);
      if (rest.count) {
        const Lanes x = some_of(row + whole, &rest);
        if (rest.end - (row + whole) >= LANES) convert_some(x, target, scale, to, LANES, &all);
        else convert_some(x, target, scale, to, rest.count, &all);
        to += rest.count * bytes;
      }
      add_up(all.squares, sums[0].of[k]);
      add_up(all.products, sums[1].of[k]);
      add_up(all.differences, sums[2].of[k]);
    }
    tell(sums, count, told, out);
    if (memchr(out, 1, (size_t)count)) *odds += left_out(out, block, first, count, dim, told, odd + *odds);
  }
  float largest = 0;
  for (int lane = 0; lane < LANES; lane++) largest = larger_of(all.largest[lane], largest);
  return largest;
}

/* Converts [n, dim] values; returns the largest difference. odd: [n], its first *odds are filled. */
EACH_CPU static float convert(const float *values, ptrdiff_t n, ptrdiff_t dim, Stored target, char *to, float *scales,
                              Told *told, int64_t *odd, ptrdiff_t *odds) {
  if (target == BFLOAT16) return convert_by(values, n, dim, BFLOAT16, to, scales, told, odd, odds);
  if (target == FLOAT16) return convert_by(values, n, dim, FLOAT16, to, scales, told, odd, odds);
  return convert_by(values, n, dim, INT8, to, scales, told, odd, odds);
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
  const npy_intp n = PyArray_DIM(values, 0);
  PyObject *stored = PyArray_SimpleNew(2, PyArray_DIMS(values), targets[kind].type);
  PyObject *scales = targets[kind].stored == INT8 ? PyArray_SimpleNew(1, &n, NPY_FLOAT32) : Py_NewRef(Py_None);
  int64_t *odd = PyMem_Malloc((size_t)n * sizeof *odd);
  PyObject *left = NULL, *made = NULL;
  if (!odd) PyErr_NoMemory();
  if (stored && scales && odd) {
    char *to = PyArray_BYTES((PyArrayObject *)stored);
    float *factors = scales == Py_None ? NULL : PyArray_DATA((PyArrayObject *)scales);
    Told told = {{0}, {0}, {0}};
    for (int k = 0; k < ROWS; k++) told.cosine_min[k] = 1;
    npy_intp odds = 0;
    float largest;
    Py_BEGIN_ALLOW_THREADS;
    largest = convert(PyArray_DATA(values), n, PyArray_DIM(values, 1), targets[kind].stored, to, factors, &told, odd, &odds);
    Py_END_ALLOW_THREADS;
    for (int k = 1; k < ROWS; k++) {
      told.squares[0] += told.squares[k], told.cosines[0] += told.cosines[k];
      if (told.cosine_min[k] < told.cosine_min[0]) told.cosine_min[0] = told.cosine_min[k];
    }
    left = PyArray_SimpleNew(1, &odds, NPY_INT64);
    if (left) {
      memcpy(PyArray_DATA((PyArrayObject *)left), odd, (size_t)odds * sizeof *odd);
      made = Py_BuildValue("OO(dddd)O", stored, scales, (double)largest, told.squares[0], told.cosine_min[0],
                           told.cosines[0], left);
    }
  }
  PyMem_Free(odd);
  Py_XDECREF(stored);
  Py_XDECREF(scales);
  Py_XDECREF(left);
  Py_DECREF(values);
  return made;
}
#endif
