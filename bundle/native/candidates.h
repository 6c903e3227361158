/* What filters do with candidates: marks them by bits, lists those that are marked, and collects their codes. Part of
   _rows.c.

   Each is bound by the latency of memory, or by what a call of numpy does for each candidate. */
#ifndef ROWCAST_CANDIDATES_H
#define ROWCAST_CANDIDATES_H

#include <stdint.h>
#include <string.h>

#define CODES_AHEAD 256 /* codes prefetched before they are needed */
#define BLOCK 32        /* codes that faiss compares at once */
#define COLUMNS 16      /* bytes of codes that are transposed at once */

/* Two rows of 16 bytes beside each other. */
typedef uint8_t Pair16 __attribute__((vector_size(32)));
typedef uint8_t Bytes16 __attribute__((vector_size(16)));

#ifdef __clang__
#define SHUFFLE(first, second, ...) __builtin_shufflevector(first, second, __VA_ARGS__)
#else
#define SHUFFLE(first, second, ...) __builtin_shuffle(first, second, (Pair16){__VA_ARGS__})
#endif
/* The first halves of rows, byte by byte in turns, and the second halves. */
#define LOW(first, second)                                                                                        \
  SHUFFLE(first, second, 0, 32, 1, 33, 2, 34, 3, 35, 4, 36, 5, 37, 6, 38, 7, 39, 16, 48, 17, 49, 18, 50, 19, 51, \
          20, 52, 21, 53, 22, 54, 23, 55)
#define HIGH(first, second)                                                                                        \
  SHUFFLE(first, second, 8, 40, 9, 41, 10, 42, 11, 43, 12, 44, 13, 45, 14, 46, 15, 47, 24, 56, 25, 57, 26, 58, 27, \
          59, 28, 60, 29, 61, 30, 62, 31, 63)

/* Transposes 16 rows of 16 bytes, twice beside each other: each round puts the bytes of rows i and i + 8 in turns. */
INLINE void transpose(Pair16 rows[16]) {
  for (int round = 0; round < 4; round++) {
    Pair16 mixed[16];
    for (int i = 0; i < 8; i++) {
      mixed[2 * i] = LOW(rows[i], rows[i + 8]);
      mixed[2 * i + 1] = HIGH(rows[i], rows[i + 8]);
    }
    memcpy(rows, mixed, sizeof mixed);
  }
}

/* Writes the codes of up to 32 candidates as pq4_pack_codes of faiss 1.15 does: for each byte of a code the low halves
   of all, then the high ones, in the order of its registers. */
INLINE void pack_block(const uint8_t *codes, npy_intp width, const uint32_t *positions, npy_intp count, uint8_t *to) {
  for (npy_intp column = 0; column < width; column += COLUMNS) {
    const npy_intp columns = width - column < COLUMNS ? width - column : COLUMNS;
    Pair16 rows[16];
    if (count < BLOCK || columns < COLUMNS) memset(rows, 0, sizeof rows);
    for (npy_intp k = 0; k < count; k++) {
      /* Codes 0 and 8 come first, then 1 and 9; 16 codes further beside them. */
      uint8_t *row = (uint8_t *)&rows[2 * (k % 8) + k / 8 % 2] + k / 16 * 16;
      const uint8_t *code = codes + (npy_intp)positions[k] * width + column;
      if (columns == COLUMNS) memcpy(row, code, COLUMNS); /* of a constant size: one load */
      else memcpy(row, code, (size_t)columns);
    }
    transpose(rows);
    for (npy_intp j = 0; j < columns; j++, to += BLOCK) {
      Bytes16 halves[2];
      memcpy(halves, &rows[j], sizeof halves);
      const Bytes16 low = (halves[0] & 15) | (halves[1] << 4);
      const Bytes16 high = (halves[0] >> 4) | (halves[1] & 0xF0);
      memcpy(to, &low, sizeof low);
      memcpy(to + sizeof low, &high, sizeof high);
    }
  }
}

EACH_CPU static void pack_all(const uint8_t *codes, npy_intp width, const uint32_t *positions, npy_intp m, uint8_t *to) {
  for (npy_intp k = 0; k < m; k += BLOCK) {
    for (npy_intp i = k + CODES_AHEAD; i < k + CODES_AHEAD + BLOCK && i < m; i++)
      __builtin_prefetch(codes + (npy_intp)positions[i] * width);
    const npy_intp count = m - k < BLOCK ? m - k : BLOCK;
    if (count == BLOCK && width == COLUMNS) pack_block(codes, COLUMNS, positions + k, BLOCK, to + k * width);
    else pack_block(codes, width, positions + k, count, to + k * width);
  }
}

/* Returns the largest of some positions. */
INLINE uint32_t largest_of(const uint32_t *at, npy_intp count) {
  uint32_t largest = 0;
  for (npy_intp i = 0; i < count; i++) largest = at[i] > largest ? at[i] : largest;
  return largest;
}

/* pack_codes(codes, positions, out): writes the codes at uint32 positions of [size, width] uint8 as faiss compares them,
   ceil(m / 32) * 32 * width bytes. */
static PyObject *pack_codes(PyObject *module, PyObject *const *args, Py_ssize_t count) {
  (void)module;
  PyArrayObject *codes = count == 3 ? plain_array(args[0], NPY_UINT8, 2) : NULL;
  PyArrayObject *positions = codes ? plain_array(args[1], NPY_UINT32, 1) : NULL;
  PyArrayObject *out = positions ? plain_array(args[2], NPY_UINT8, 1) : NULL;
  const npy_intp m = out ? PyArray_SIZE(positions) : 0;
  const npy_intp width = out ? PyArray_DIM(codes, 1) : 0;
  if (!out || !PyArray_ISWRITEABLE(out) || PyArray_SIZE(out) != (m + BLOCK - 1) / BLOCK * BLOCK * width)
    return PyErr_Format(PyExc_ValueError,
                        "codes must be [size, width] uint8, positions [m] uint32, and out uint8 of ceil(m / 32) * 32 * "
                        "width, contiguous");
  const npy_intp size = PyArray_DIM(codes, 0);
  const uint32_t *at = PyArray_DATA(positions);
  const uint8_t *from = PyArray_DATA(codes);
  uint8_t *to = PyArray_DATA(out);
  PyThreadState *state = m * width > GIL_BYTES ? PyEval_SaveThread() : NULL;
  const uint32_t largest = largest_of(at, m);
  const int inside = !m || largest < size;
  if (inside) pack_all(from, width, at, m, to);
  if (state) PyEval_RestoreThread(state);
  if (inside) Py_RETURN_NONE;
  return PyErr_Format(PyExc_IndexError, "position %u lies behind the %zd codes", largest, (Py_ssize_t)size);
}

/* Sets the bits of some candidates, or clears them. */
INLINE void mark_some(uint64_t *bits, const uint32_t *at, npy_intp count, int value) {
  for (npy_intp i = 0; i < count; i++) {
    uint8_t *byte = (uint8_t *)bits + (at[i] >> 3);
    const uint8_t bit = (uint8_t)(1 << (at[i] & 7));
    *byte = value ? *byte | bit : *byte & (uint8_t)~bit;
  }
}

/* mark(bits, positions, value): sets the bits of candidates in [words] uint64, or clears them; in any order. */
static PyObject *mark(PyObject *module, PyObject *const *args, Py_ssize_t count) {
  (void)module;
  PyArrayObject *given = count == 3 ? plain_array(args[0], NPY_UINT64, 1) : NULL;
  PyArrayObject *positions = given ? plain_array(args[1], NPY_UINT32, 1) : NULL;
  const int value = positions ? PyObject_IsTrue(args[2]) : -1;
  if (value < 0 || !PyArray_ISWRITEABLE(given))
    return PyErr_Format(PyExc_ValueError, "bits must be writable [words] uint64, and positions [m] uint32, contiguous");
  const npy_intp size = 64 * PyArray_SIZE(given);
  const npy_intp m = PyArray_SIZE(positions);
  const uint32_t *at = PyArray_DATA(positions);
  uint64_t *bits = PyArray_DATA(given);
  PyThreadState *state = m * (npy_intp)sizeof *at > GIL_BYTES ? PyEval_SaveThread() : NULL;
  npy_intp k = 0;
  for (; k + 8 <= m && largest_of(at + k, 8) < size; k += 8) {
    uint32_t others = 0;
    for (int i = 1; i < 8; i++) others |= (at[k + i] ^ at[k]) >> 6;
    if (others) {
      mark_some(bits, at + k, 8, value);
      continue;
    }
    /* Of the same word, as where most candidates match in order: a byte that was just written is read slowly. */
    uint64_t word = 0;
    for (int i = 0; i < 8; i++) word |= UINT64_C(1) << (at[k + i] & 63);
    bits[at[k] >> 6] = value ? bits[at[k] >> 6] | word : bits[at[k] >> 6] & ~word;
  }
  const npy_intp left = m - k < 8 ? m - k : 8;
  const uint32_t largest = largest_of(at + k, left);
  const int inside = !left || largest < size;
  if (inside) mark_some(bits, at + k, left, value);
  if (state) PyEval_RestoreThread(state);
  if (inside) Py_RETURN_NONE;
  return PyErr_Format(PyExc_IndexError, "position %u lies behind the %zd bits", largest, (Py_ssize_t)size);
}

/* where_marked(bits, positions) -> [n] uint32: the indices of those positions whose bits are set in [words] uint64. */
static PyObject *where_marked(PyObject *module, PyObject *const *args, Py_ssize_t count) {
  (void)module;
  PyArrayObject *given = count == 2 ? plain_array(args[0], NPY_UINT64, 1) : NULL;
  PyArrayObject *positions = given ? plain_array(args[1], NPY_UINT32, 1) : NULL;
  const npy_intp m = positions ? PyArray_SIZE(positions) : 0;
  if (!positions || m > UINT32_MAX)
    return PyErr_Format(PyExc_ValueError, "bits must be [words] uint64, and positions [m] uint32, contiguous");
  const npy_intp size = 64 * PyArray_SIZE(given);
  const uint32_t *at = PyArray_DATA(positions);
  const uint64_t *bits = PyArray_DATA(given);
  PyThreadState *state = m * (npy_intp)sizeof *at > GIL_BYTES ? PyEval_SaveThread() : NULL;
  const uint32_t largest = largest_of(at, m);
  const int inside = !m || largest < size;
  npy_intp n = 0;
  for (npy_intp k = 0; k < m && inside; k++) n += bits[at[k] >> 6] >> (at[k] & 63) & 1;
  if (state) PyEval_RestoreThread(state);
  if (!inside) return PyErr_Format(PyExc_IndexError, "position %u lies behind the %zd bits", largest, (Py_ssize_t)size);

  PyArrayObject *indices = (PyArrayObject *)PyArray_SimpleNew(1, &n, NPY_UINT32);
  if (!indices) return NULL;
  uint32_t *to = PyArray_DATA(indices);
  state = m * (npy_intp)sizeof *at > GIL_BYTES ? PyEval_SaveThread() : NULL;
  /* Without a branch, which would be guessed wrong for every other position. */
  for (npy_intp k = 0, found = 0; found < n && k < m; k++) {
    to[found] = (uint32_t)k;
    found += bits[at[k] >> 6] >> (at[k] & 63) & 1;
  }
  if (state) PyEval_RestoreThread(state);
  return (PyObject *)indices;
}

/* marked(bits) -> [m] uint32: the positions of the bits that are set in [words] uint64, ascending. */
static PyObject *marked(PyObject *module, PyObject *given) {
  (void)module;
  PyArrayObject *array = plain_array(given, NPY_UINT64, 1);
  if (!array || PyArray_SIZE(array) > INT64_C(1) << 26)
    return PyErr_Format(PyExc_ValueError, "bits must be contiguous [words] uint64, of at most 2^32 candidates");
  const npy_intp words = PyArray_SIZE(array);
  const uint64_t *bits = PyArray_DATA(array);
  npy_intp m = 0;
  for (npy_intp i = 0; i < words; i++) m += __builtin_popcountll(bits[i]);
  PyArrayObject *positions = (PyArrayObject *)PyArray_SimpleNew(1, &m, NPY_UINT32);
  if (!positions) return NULL;
  uint32_t *to = PyArray_DATA(positions);
  npy_intp k = 0;
  PyThreadState *state = m * (npy_intp)sizeof *to > GIL_BYTES ? PyEval_SaveThread() : NULL;
  for (npy_intp i = 0; i < words; i++)
    for (uint64_t word = bits[i]; word && k < m; word &= word - 1)
      to[k++] = (uint32_t)(64 * i + __builtin_ctzll(word));
  if (state) PyEval_RestoreThread(state);
  return (PyObject *)positions;
}

#endif
