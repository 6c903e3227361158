/* FarmHash Fingerprint64 of texts, many at a call. Part of _rows.c.

   Source: FarmHash 1.1, farmhash.cc, farmhashna::Hash64 (the formula; copyright 2014 Google, Inc., MIT license), which is
   the Fingerprint64 of TensorFlow. bundle/fingerprints.py computes the same in numpy. */
#ifndef ROWCAST_FINGERPRINTS_H
#define ROWCAST_FINGERPRINTS_H

#include <stddef.h>
#include <stdint.h>
#include <string.h>

static const uint64_t K0 = UINT64_C(0xc3a5c85c97cb3127);
static const uint64_t K1 = UINT64_C(0xb492b66fbe98f273);
static const uint64_t K2 = UINT64_C(0x9ae16a3b2f90404f);

typedef struct {
  uint64_t low, high;
} Pair;

INLINE uint64_t word_at(const uint8_t *at) {
  uint64_t word;
  memcpy(&word, at, sizeof word);
  return word;
}

INLINE uint64_t half_word_at(const uint8_t *at) {
  uint32_t half;
  memcpy(&half, at, sizeof half);
  return half;
}

INLINE uint64_t rotated_right(uint64_t value, int bits) { return value >> bits | value << (64 - bits); }

INLINE uint64_t mixed(uint64_t value) { return value ^ value >> 47; }

INLINE uint64_t combined(uint64_t first, uint64_t second, uint64_t factor) {
  return mixed((second ^ mixed((first ^ second) * factor)) * factor) * factor;
}

INLINE uint64_t of_up_to_16(const uint8_t *text, size_t size) {
  const uint64_t factor = K2 + size * 2;
  if (size >= 8) {
    const uint64_t first = word_at(text) + K2, last = word_at(text + size - 8);
    return combined(rotated_right(last, 37) * factor + first, (rotated_right(first, 25) + last) * factor, factor);
  }
  if (size >= 4) return combined(size + (half_word_at(text) << 3), half_word_at(text + size - 4), factor);
  if (size > 0) {
    const uint64_t begin = text[0] + ((uint64_t)text[size / 2] << 8), end = size + ((uint64_t)text[size - 1] << 2);
    return mixed(begin * K2 ^ end * K0) * K2;
  }
  return K2;
}

/* Returns two sums of the first and the last 16 bytes of a text; `first` is its first word times a constant. */
INLINE Pair of_both_ends(const uint8_t *text, size_t size, uint64_t first, uint64_t factor) {
  const uint64_t second = word_at(text + 8), last = word_at(text + size - 8) * factor;
  return (Pair){rotated_right(first + second, 43) + rotated_right(last, 30) + word_at(text + size - 16) * K2,
                first + rotated_right(second + K2, 18) + last};
}

INLINE uint64_t of_up_to_32(const uint8_t *text, size_t size) {
  const uint64_t factor = K2 + size * 2;
  const Pair ends = of_both_ends(text, size, word_at(text) * K1, factor);
  return combined(ends.low, ends.high, factor);
}

INLINE uint64_t of_up_to_64(const uint8_t *text, size_t size) {
  const uint64_t factor = K2 + size * 2, first = word_at(text) * K2;
  const Pair ends = of_both_ends(text, size, first, factor);
  const uint64_t whole = combined(ends.low, ends.high, factor);
  const uint64_t third = word_at(text + 16) * factor, fourth = word_at(text + 24);
  const uint64_t before_last = (ends.low + word_at(text + size - 32)) * factor;
  const uint64_t last = (whole + word_at(text + size - 24)) * factor;
  return combined(rotated_right(third + fourth, 43) + rotated_right(before_last, 30) + last,
                  third + rotated_right(fourth + first, 18) + before_last, factor);
}

/* Returns a sum of 32 bytes and two seeds. */
INLINE Pair summed(const uint8_t *bytes, uint64_t low, uint64_t high) {
  const uint64_t first = low + word_at(bytes), last = word_at(bytes + 24);
  const uint64_t sum = first + word_at(bytes + 8) + word_at(bytes + 16);
  return (Pair){sum + last, rotated_right(high + first + last, 21) + rotated_right(sum, 44) + first};
}

/* The state of a text of more than 64 bytes. */
typedef struct {
  uint64_t x, y, z;
  Pair v, w;
} State;

/* Adds 64 bytes. The last block of a text, which overlaps the one before it, has a factor of its own, and weighs v and w
   by 9. */
INLINE void add_block(State *state, const uint8_t *block, uint64_t factor, uint64_t weight) {
  const uint64_t x = rotated_right(state->x + state->y + state->v.low + word_at(block + 8), 37) * factor ^
                     state->w.high * weight;
  const uint64_t y = rotated_right(state->y + state->v.high + word_at(block + 48), 42) * factor +
                     state->v.low * weight + word_at(block + 40);
  const uint64_t z = rotated_right(state->z + state->w.low, 33) * factor;
  state->v = summed(block, state->v.high * factor, x + state->w.low);
  state->w = summed(block + 32, z + state->w.high, y + word_at(block + 16));
  state->x = z;
  state->y = y;
  state->z = x;
}

static uint64_t of_more_than_64(const uint8_t *text, size_t size) {
  const uint64_t seed = 81, y = seed * K1 + 113;
  State state = {.x = seed * K2 + word_at(text), .y = y, .z = mixed(y * K2 + 113) * K2};
  const size_t blocks = (size - 1) / 64; /* but the last */
  for (size_t block = 0; block < blocks; block++) add_block(&state, text + 64 * block, K1, 1);

  const uint64_t factor = K1 + ((state.z & 0xff) << 1);
  state.w.low += (size - 1) & 63;
  state.v.low += state.w.low;
  state.w.low += state.v.low;
  add_block(&state, text + size - 64, factor, 9);
  return combined(combined(state.v.low, state.w.low, factor) + mixed(state.y) * K0 + state.z,
                  combined(state.v.high, state.w.high, factor) + state.x, factor);
}

INLINE uint64_t fingerprint(const uint8_t *text, size_t size) {
  if (size <= 16) return of_up_to_16(text, size);
  if (size <= 32) return of_up_to_32(text, size);
  if (size <= 64) return of_up_to_64(text, size);
  return of_more_than_64(text, size);
}

/* text_fingerprints(texts) -> [m] uint64 of an array of str, hashed as UTF-8, or bytes. */
static PyObject *text_fingerprints(PyObject *module, PyObject *given) {
  (void)module;
  PyArrayObject *texts = vector_of(given, NPY_OBJECT);
  if (!texts) return NULL;
  npy_intp n = PyArray_SIZE(texts);
  PyArrayObject *fingerprints = (PyArrayObject *)PyArray_SimpleNew(1, &n, NPY_UINT64);
  uint64_t *to = fingerprints ? PyArray_DATA(fingerprints) : NULL;
  PyObject *const *objects = PyArray_DATA(texts);
  for (npy_intp k = 0; to && k < n; k++) {
    PyObject *text = objects[k];
    const char *bytes = NULL;
    Py_ssize_t size = 0;
    if (text && PyUnicode_Check(text)) {
      bytes = PyUnicode_AsUTF8AndSize(text, &size);
    } else if (text && PyBytes_Check(text)) {
      bytes = PyBytes_AsString(text);
      size = PyBytes_Size(text);
    } else {
      PyErr_Format(PyExc_TypeError, "texts must be str or bytes; number %zd is neither", (Py_ssize_t)k);
    }
    if (!bytes) {
      Py_CLEAR(fingerprints);
      break;
    }
    to[k] = fingerprint((const uint8_t *)bytes, (size_t)size);
  }
  Py_DECREF(texts);
  return (PyObject *)fingerprints;
}

/* column_fingerprints(memory, offsets) -> [m] uint64 of the texts between [m + 1] offsets into a uint8 array. */
static PyObject *column_fingerprints(PyObject *module, PyObject *const *args, Py_ssize_t count) {
  (void)module;
  PyArrayObject *memory = count == 2 ? plain_array(args[0], NPY_UINT8, 1) : NULL;
  PyArrayObject *offsets = memory ? plain_array(args[1], NPY_INT64, 1) : NULL;
  npy_intp n = offsets ? PyArray_SIZE(offsets) - 1 : -1;
  const int64_t *ends = offsets ? PyArray_DATA(offsets) : NULL;
  if (n < 0 || !valid_offsets(ends, n, PyArray_SIZE(memory)))
    return PyErr_Format(PyExc_ValueError, "texts need a uint8 array, and int64 offsets that never fall nor leave it");
  PyArrayObject *fingerprints = (PyArrayObject *)PyArray_SimpleNew(1, &n, NPY_UINT64);
  if (!fingerprints) return NULL;
  const uint8_t *texts = PyArray_DATA(memory);
  uint64_t *to = PyArray_DATA(fingerprints);
  PyThreadState *state = ends[n] - ends[0] + n * (npy_intp)sizeof *to > GIL_BYTES ? PyEval_SaveThread() : NULL;
  for (npy_intp k = 0; k < n; k++) to[k] = fingerprint(texts + ends[k], (size_t)(ends[k + 1] - ends[k]));
  if (state) PyEval_RestoreThread(state);
  return (PyObject *)fingerprints;
}

#endif
