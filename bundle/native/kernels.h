/* Rows out of mapped shards: where each lies, how it becomes float32, and the two loops over many of them.

   Random rows are bound by the latency of memory, so each loop asks for a row AHEAD of the one that it works on. The
   loops are plain C: the compiler makes one version for each kind of CPU, the loader picks (EACH_CPU), and for the
   usual widths the number of values is a constant. Nothing here knows of Python or is called with its lock needed. */
#ifndef ROWCAST_KERNELS_H
#define ROWCAST_KERNELS_H

#include <math.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#if !defined(__BYTE_ORDER__) || __BYTE_ORDER__ != __ORDER_LITTLE_ENDIAN__
#error "rows are stored little-endian; numpy reads them here"
#endif

#if defined(__x86_64__) && defined(__GLIBC__) && defined(__has_attribute)
#if __has_attribute(target_clones)
#define EACH_CPU __attribute__((target_clones("default", "avx2", "avx512f")))
#endif
#endif
#ifndef EACH_CPU
#define EACH_CPU
#endif
#define INLINE static inline __attribute__((always_inline))

/* Rows asked for before they are needed: more brings nothing, half of it a third less (docs/adr/0011). */
#ifndef AHEAD
#define AHEAD 16
#endif
#define RING 32 /* a power of two above AHEAD */
#define LINE 64
#define LINES_AHEAD 8 /* of one row; the CPU itself fetches what follows */

typedef enum { FLOAT32, BFLOAT16, FLOAT16, INT8 } Stored;
typedef enum { SUM, MEAN, SQRTN } Combiner;

/* Values of a shard lie at any byte. */
typedef float Float __attribute__((aligned(1), may_alias));
typedef uint16_t Half __attribute__((aligned(1), may_alias));

/* Shards of rows of one width that follow one another. A row lies `row * row_bytes` behind its shard's origin. */
typedef struct {
  int64_t rows;
  size_t row_bytes;
  uint32_t shards;
  uint32_t shift;
  uintptr_t *origins; /* [shards] */
  int64_t *starts;    /* [shards + 1]: first row of each */
  uint32_t *buckets;  /* [(rows - 1 >> shift) + 2]: the shard of the first row of each 2^shift; not of one shard */
} Map;

typedef struct {
  Map values;
  Map scales; /* of INT8 */
  Stored stored;
  ptrdiff_t dim;
  void *zeros; /* a row of them */
} Rows;

INLINE uintptr_t place(const Map *map, int64_t row) {
  if (map->shards == 1) return map->origins[0] + (uintptr_t)row * map->row_bytes;
  const int64_t bucket = row >> map->shift;
  uint32_t low = map->buckets[bucket], high = map->buckets[bucket + 1];
  while (low < high) { /* the last shard that begins at the row or before it */
    const uint32_t middle = low + (high - low + 1) / 2;
    if (map->starts[middle] <= row) low = middle;
    else high = middle - 1;
  }
  return map->origins[low] + (uintptr_t)row * map->row_bytes;
}

INLINE int64_t within(const Map *map, int64_t row) { return row < map->rows ? row : map->rows - 1; }

/* Where the next rows lie, and their scales. */
typedef struct {
  uintptr_t at[RING];
  uintptr_t scale[RING];
} Ring;

static const float NO_SCALE = 0;

/* Asks the memory for row number k of a call. A negative one is `absent`. */
INLINE void ask(const Rows *from, const int64_t *rows, ptrdiff_t k, Ring *ring, Stored stored, ptrdiff_t row_bytes,
                uintptr_t absent) {
  const int slot = k & (RING - 1);
  const int64_t row = within(&from->values, rows[k]);
  if (row < 0) {
    ring->at[slot] = absent;
    ring->scale[slot] = (uintptr_t)&NO_SCALE;
    return;
  }
  const uintptr_t at = place(&from->values, row);
  ring->at[slot] = at;
  for (ptrdiff_t line = 0; line < row_bytes && line < LINES_AHEAD * LINE; line += LINE)
    __builtin_prefetch((const void *)(at + (uintptr_t)line));
  if (row_bytes < LINES_AHEAD * LINE) __builtin_prefetch((const void *)(at + (uintptr_t)row_bytes - 1));
  if (stored == INT8) {
    const uintptr_t scale = place(&from->scales, row);
    ring->scale[slot] = scale;
    __builtin_prefetch((const void *)scale);
  }
}

/* A half's exponent and mantissa moved to where a float's are; its exponent then is 112 too small, 224 of infinities
   and NaNs. A subnormal one has the value of what it adds to the least normal one. */
INLINE float widened_half(uint16_t half) {
  const uint32_t magnitude = (uint32_t)(half & 0x7fff) << 13, exponent = magnitude & 0x0f800000;
  const uint32_t least = 113u << 23;
  uint32_t bits = magnitude + (exponent == 0x0f800000 ? 224u << 23 : 112u << 23);
  const uint32_t raised = magnitude + least;
  float normal, above, base;
  memcpy(&normal, &bits, 4);
  memcpy(&above, &raised, 4);
  memcpy(&base, &least, 4);
  float value = exponent == 0 ? above - base : normal;
  memcpy(&bits, &value, 4);
  bits |= (uint32_t)(half & 0x8000) << 16;
  memcpy(&value, &bits, 4);
  return value;
}

INLINE float value_at(uintptr_t at, ptrdiff_t i, Stored stored, float scale) {
  float value;
  if (stored == FLOAT32) return ((const Float *)at)[i];
  if (stored == BFLOAT16) {
    const uint32_t bits = (uint32_t)((const Half *)at)[i] << 16;
    memcpy(&value, &bits, 4);
    return value;
  }
  if (stored == FLOAT16) return widened_half(((const Half *)at)[i]);
  return (float)((const int8_t *)at)[i] * scale;
}

INLINE ptrdiff_t width(Stored stored) { return stored == FLOAT32 ? 4 : stored == INT8 ? 1 : 2; }

INLINE void take_loop(const Rows *from, const int64_t *rows, ptrdiff_t n, char *out, ptrdiff_t stride, Stored stored,
                      ptrdiff_t dim) {
  Ring ring;
  const ptrdiff_t row_bytes = dim * width(stored);
  const uintptr_t absent = (uintptr_t)from->zeros;
  for (ptrdiff_t k = 0; k < n && k < AHEAD; k++) ask(from, rows, k, &ring, stored, row_bytes, absent);
  for (ptrdiff_t k = 0; k < n; k++) {
    if (k + AHEAD < n) ask(from, rows, k + AHEAD, &ring, stored, row_bytes, absent);
    const uintptr_t at = ring.at[k & (RING - 1)];
    const float scale = stored == INT8 ? *(const Float *)ring.scale[k & (RING - 1)] : 1;
    float *restrict to = (float *)(out + k * stride);
    if (stored == FLOAT32) memcpy(to, (const void *)at, (size_t)row_bytes);
    else
      for (ptrdiff_t i = 0; i < dim; i++) to[i] = value_at(at, i, stored, scale);
  }
}

/* Adds front to back, as bundle/combiner.py does: the first row is copied, so that nothing is added to it. */
INLINE void bags_loop(const Rows *from, const int64_t *rows, const int64_t *offsets, ptrdiff_t n, const float *weights,
                      Combiner combiner, char *out, ptrdiff_t stride, Stored stored, ptrdiff_t dim) {
  Ring ring;
  const ptrdiff_t row_bytes = dim * width(stored), end = offsets[n];
  for (ptrdiff_t k = offsets[0]; k < end && k < offsets[0] + AHEAD; k++)
    ask(from, rows, k, &ring, stored, row_bytes, 0);
  for (ptrdiff_t bag = 0; bag < n; bag++) {
    float *restrict to = (float *)(out + bag * stride);
    int64_t count = 0;
    float divisor = 0;
    for (ptrdiff_t k = offsets[bag]; k < offsets[bag + 1]; k++) {
      const uintptr_t at = ring.at[k & (RING - 1)];
      const uintptr_t scale_at = ring.scale[k & (RING - 1)];
      if (k + AHEAD < end) ask(from, rows, k + AHEAD, &ring, stored, row_bytes, 0);
      if (at == 0) continue;
      const float scale = stored == INT8 ? *(const Float *)scale_at : 1;
      const float weight = weights ? weights[k] : 1; /* times 1 changes nothing */
      const float part = combiner == SQRTN ? weight * weight : weight;
      if (count++ == 0) {
        for (ptrdiff_t i = 0; i < dim; i++) to[i] = value_at(at, i, stored, scale) * weight;
        divisor = part;
      } else {
        for (ptrdiff_t i = 0; i < dim; i++) to[i] += value_at(at, i, stored, scale) * weight;
        divisor += part;
      }
    }
    if (!weights) divisor = (float)count;
    if (combiner == SQRTN) divisor = sqrtf(divisor);
    if (count == 0 || (combiner != SUM && divisor == 0)) memset(to, 0, (size_t)dim * sizeof(float));
    else if (combiner != SUM)
      for (ptrdiff_t i = 0; i < dim; i++) to[i] /= divisor;
  }
}

#define FOR_WIDTH(loop, stored)        \
  switch (from->dim) {                 \
    case 8: loop(stored, 8); break;    \
    case 16: loop(stored, 16); break;  \
    case 32: loop(stored, 32); break;  \
    case 64: loop(stored, 64); break;  \
    case 128: loop(stored, 128); break; \
    default: loop(stored, from->dim);  \
  }
#define FOR_EACH(loop)                                \
  switch (from->stored) {                             \
    case FLOAT32: FOR_WIDTH(loop, FLOAT32) break;     \
    case BFLOAT16: FOR_WIDTH(loop, BFLOAT16) break;   \
    case FLOAT16: FOR_WIDTH(loop, FLOAT16) break;     \
    case INT8: FOR_WIDTH(loop, INT8) break;           \
  }

/* Reads n rows into lines of `out`, `stride` bytes apart; a negative row gives zeros, one past the end the last. */
EACH_CPU static void take_rows(const Rows *from, const int64_t *rows, ptrdiff_t n, char *out, ptrdiff_t stride) {
#define TAKE(stored, dim) take_loop(from, rows, n, out, stride, stored, dim)
  FOR_EACH(TAKE)
}

/* Combines the rows of n bags into lines of `out`. `weights` may be NULL: all 1. `offsets` were checked. */
EACH_CPU static void combine_bags(const Rows *from, const int64_t *rows, const int64_t *offsets, ptrdiff_t n,
                                  const float *weights, Combiner combiner, char *out, ptrdiff_t stride) {
#define BAGS(stored, dim) bags_loop(from, rows, offsets, n, weights, combiner, out, stride, stored, dim)
  FOR_EACH(BAGS)
}

#endif
