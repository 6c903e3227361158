/* The best of some candidates by their exact scores, out of vectors in a mapped file. Part of _rows.c. */
#ifndef ROWCAST_NEAREST_H
#define ROWCAST_NEAREST_H

#define LANES 16
#define CANDIDATES_AHEAD 32 /* 16 take a tenth longer, 64 as long */

#define FEW_KEYS 12 /* are sorted by putting each in its place */
#define DIVISIONS_MAX 64

typedef enum { DOT_PRODUCT, COSINE, SQUARED_L2 } Distance;

typedef float Lanes __attribute__((vector_size(LANES * sizeof(float)), aligned(4), may_alias));

INLINE float sum_of(const Lanes *lanes) {
  float sums[LANES];
  memcpy(sums, lanes, sizeof sums);
  for (int width = LANES / 2; width; width /= 2)
    for (int lane = 0; lane < width; lane++) sums[lane] += sums[lane + width];
  return sums[0];
}

INLINE void add(Lanes value, Lanes asked, Distance distance, Lanes *sums, Lanes *squares) {
  if (distance == SQUARED_L2) value -= asked, *sums += value * value;
  else *sums += value * asked;
  if (distance == COSINE) *squares += value * value;
}

INLINE void ask_vector(const float *vectors, uint32_t position, ptrdiff_t dim) {
  const char *at = (const char *)(vectors + (size_t)position * (size_t)dim);
  const ptrdiff_t bytes = dim * (ptrdiff_t)sizeof *vectors;
  for (ptrdiff_t line = 0; line < bytes && line < LINES_AHEAD * LINE; line += LINE) __builtin_prefetch(at + line);
}

INLINE void score_by(const float *vectors, const uint32_t *positions, ptrdiff_t n, ptrdiff_t dim, const float *query,
                     Distance distance, float *scores) {
  const ptrdiff_t rest = dim % LANES;
  for (ptrdiff_t k = 0; k < n && k < CANDIDATES_AHEAD; k++) ask_vector(vectors, positions[k], dim);
  for (ptrdiff_t k = 0; k < n; k++) {
    if (k + CANDIDATES_AHEAD < n) ask_vector(vectors, positions[k + CANDIDATES_AHEAD], dim);
    const float *vector = vectors + (size_t)positions[k] * (size_t)dim;
    Lanes sums = {0}, squares = {0};
    for (ptrdiff_t from = 0; from < dim - rest; from += LANES)
      add(*(const Lanes *)(vector + from), *(const Lanes *)(query + from), distance, &sums, &squares);
    if (rest) {
      Lanes value = {0}, asked = {0};
      memcpy(&value, vector + dim - rest, (size_t)rest * sizeof *vector);
      memcpy(&asked, query + dim - rest, (size_t)rest * sizeof *query);
      add(value, asked, distance, &sums, &squares);
    }
    const float sum = sum_of(&sums), length = distance == COSINE ? sqrtf(sum_of(&squares)) : 1;
    scores[k] = distance == SQUARED_L2 ? 0 - sum : length > 0 ? sum / length + 0.0f : 0; /* no -0 */
  }
}

/* Larger is better. Sums run in LANES lanes that are added in halves: runtime/reordering.py adds in the same order. */
EACH_CPU static void score(const float *vectors, const uint32_t *positions, ptrdiff_t n, ptrdiff_t dim,
                           const float *query, Distance distance, float *scores) {
  if (distance == DOT_PRODUCT) score_by(vectors, positions, n, dim, query, DOT_PRODUCT, scores);
  else if (distance == COSINE) score_by(vectors, positions, n, dim, query, COSINE, scores);
  else score_by(vectors, positions, n, dim, query, SQUARED_L2, scores);
}

/* The better score has the smaller key, of equal scores the smaller position; what is no number is the worst. */
static uint64_t key_of(float score, uint32_t position) {
  uint32_t bits;
  memcpy(&bits, &score, sizeof bits);
  bits = score != score ? 0 : bits >> 31 ? ~bits : bits | 1u << 31;
  return (uint64_t)~bits << 32 | position;
}

static float score_of(uint64_t key) {
  uint32_t bits = ~(uint32_t)(key >> 32);
  if (!bits) return NAN;
  bits = bits >> 31 ? bits & ~(1u << 31) : ~bits;
  float score;
  memcpy(&score, &bits, sizeof score);
  return score;
}

/* Divides keys[first] to keys[last] into those up to *right and those from *left on, none of which is smaller. */
INLINE void divide(uint64_t *keys, ptrdiff_t first, ptrdiff_t last, ptrdiff_t *left, ptrdiff_t *right) {
  const uint64_t one = keys[first], middle = keys[first + (last - first) / 2], other = keys[last];
  const uint64_t low = one < middle ? one : middle, high = one < middle ? middle : one;
  const uint64_t pivot = other < low ? low : other > high ? high : other;
  ptrdiff_t up = first, down = last;
  while (up <= down) {
    while (keys[up] < pivot) up++;
    while (keys[down] > pivot) down--;
    if (up <= down) {
      const uint64_t held = keys[up];
      keys[up++] = keys[down];
      keys[down--] = held;
    }
  }
  *left = up, *right = down;
}

static int by_key(const void *one, const void *other) {
  const uint64_t left = *(const uint64_t *)one, right = *(const uint64_t *)other;
  return (left > right) - (left < right);
}

/* Sorts keys[first] to keys[last]; with no divisions left, by an order that does not hang on what they are. */
static void sort_keys(uint64_t *keys, ptrdiff_t first, ptrdiff_t last, int divisions) {
  while (last - first >= FEW_KEYS) {
    if (divisions-- == 0) {
      qsort(keys + first, (size_t)(last - first + 1), sizeof *keys, by_key);
      return;
    }
    ptrdiff_t left, right;
    divide(keys, first, last, &left, &right);
    sort_keys(keys, first, right, divisions);
    first = left;
  }
  for (ptrdiff_t k = first + 1; k <= last; k++) {
    const uint64_t key = keys[k];
    ptrdiff_t place = k;
    for (; place > first && keys[place - 1] > key; place--) keys[place] = keys[place - 1];
    keys[place] = key;
  }
}

/* Puts the k smallest keys first, in order; the rest in any. Selects, then sorts no more than it must. */
static void smallest_first(uint64_t *keys, ptrdiff_t n, ptrdiff_t k) {
  ptrdiff_t first = 0, last = n - 1;
  for (int tries = 0; k < n && first < last; tries++) {
    if (tries == DIVISIONS_MAX) { /* an order that selecting does not get through */
      k = n;
      break;
    }
    ptrdiff_t left, right;
    divide(keys, first, last, &left, &right);
    if (k <= right + 1) last = right;
    else if (k > left) first = left;
    else break;
  }
  sort_keys(keys, 0, k - 1, DIVISIONS_MAX);
}

/* nearest(vectors, query, positions, k, distance): [m] int64 positions and [m] float32 scores, the best m <= k. */
static PyObject *nearest(PyObject *module, PyObject *const *args, Py_ssize_t count) {
  static const char *const names[] = {"dot_product", "cosine", "squared_l2"};
  (void)module;
  if (count != 5) return PyErr_Format(PyExc_TypeError, "nearest takes 5 arguments");
  const char *name = PyUnicode_AsUTF8(args[4]);
  const Py_ssize_t wanted = PyLong_AsSsize_t(args[3]);
  if (!name || (wanted == -1 && PyErr_Occurred())) return NULL;
  int distance = 0;
  while (distance < 3 && strcmp(name, names[distance])) distance++;
  PyArrayObject *vectors = (PyArrayObject *)args[0], *query = (PyArrayObject *)args[1];
  PyArrayObject *positions = (PyArrayObject *)args[2];
  for (int k = 0; k < 3; k++) {
    PyArrayObject *array = (PyArrayObject *)args[k];
    if (!PyArray_Check(args[k]) || !PyArray_ISCARRAY_RO(array) || PyArray_NDIM(array) != (k ? 1 : 2) ||
        PyArray_TYPE(array) != (k == 2 ? NPY_UINT32 : NPY_FLOAT32))
      return PyErr_Format(PyExc_ValueError, "vectors and query must be float32, positions uint32, in one piece each");
  }
  const npy_intp rows = PyArray_DIM(vectors, 0), dim = PyArray_DIM(vectors, 1), n = PyArray_SIZE(positions);
  const uint32_t *at = PyArray_DATA(positions);
  int inside = distance < 3 && wanted >= 0 && PyArray_SIZE(query) == dim;
  for (npy_intp k = 0; k < n; k++) inside &= at[k] < (uint64_t)rows;
  if (!inside) return PyErr_Format(PyExc_ValueError, "a position has no vector, or k, the distance or the query is wrong");
  npy_intp m = wanted < n ? wanted : n;
  PyObject *found = PyArray_SimpleNew(1, &m, NPY_INT64), *scores = PyArray_SimpleNew(1, &m, NPY_FLOAT32);
  uint64_t *keys = PyMem_Malloc((size_t)(n ? n : 1) * (sizeof *keys + sizeof(float)));
  if (!found || !scores || !keys) {
    Py_XDECREF(found);
    Py_XDECREF(scores);
    PyMem_Free(keys);
    return PyErr_NoMemory();
  }
  float *exact = (float *)(keys + n);
  const float *stored = PyArray_DATA(vectors), *asked = PyArray_DATA(query);
  PyThreadState *state = n * dim * (npy_intp)sizeof *stored > ALONE_BYTES ? PyEval_SaveThread() : NULL;
  score(stored, at, n, dim, asked, (Distance)distance, exact);
  for (npy_intp k = 0; k < n; k++) keys[k] = key_of(exact[k], at[k]);
  smallest_first(keys, n, m);
  if (state) PyEval_RestoreThread(state);
  int64_t *to = PyArray_DATA((PyArrayObject *)found);
  float *values = PyArray_DATA((PyArrayObject *)scores);
  for (npy_intp k = 0; k < m; k++) to[k] = (int64_t)(uint32_t)keys[k], values[k] = score_of(keys[k]);
  PyMem_Free(keys);
  return Py_BuildValue("NN", found, scores);
}

#endif
