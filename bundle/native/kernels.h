/* Rows out of mapped segments: where each lies, how it becomes float32, and the two loops over many of them.

   Random rows are bound by the latency of memory, so each loop prefetches a row AHEAD of the one that it works on. The
   loops are plain C: the compiler makes one version for each kind of CPU, the loader picks (EACH_CPU), and for the
   usual widths the number of values is a constant. Nothing here knows of Python or needs the GIL. */
#ifndef ROWCAST_KERNELS_H
#define ROWCAST_KERNELS_H

#include <math.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include "cold.h"

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

#include "deltas.h"

/* Rows prefetched before they are needed: as many as these cache lines, at most so many (docs/adr/0011). */
#define AHEAD 96
#define PREFETCHED_LINES 192
#define WINDOW 2048 /* rows whose addresses are known at once */
#define GROUP 128   /* rows that are looked up in deltas at once: more than a CPU has misses in flight */
#define LINE 64
#define LINES_AHEAD 8 /* of one row; the CPU itself fetches what follows */

typedef enum { FLOAT32, BFLOAT16, FLOAT16, INT8 } Stored;
typedef enum { SUM, MEAN, SQRTN } Combiner;

/* Values of a segment lie at any byte. */
typedef float Float __attribute__((aligned(1), may_alias));
typedef uint16_t Half __attribute__((aligned(1), may_alias));

/* Segments of rows of one width that follow one another. A row lies `row * row_bytes` behind its segment's origin. */
typedef struct {
  int64_t rows;
  size_t row_bytes;
  uint32_t segments;
  uint32_t shift;
  uintptr_t *origins; /* [segments] */
  int64_t *starts;    /* [segments + 1]: first row of each */
  uint32_t *buckets;  /* [(rows - 1 >> shift) + 2]: the segment of the first row of each 2^shift; not of one segment */
  Deltas *deltas;     /* [segments]; NULL: no segment has any */
} Map;

typedef struct {
  Map values;
  Map scales; /* of INT8 */
  Stored stored;
  ptrdiff_t dim;
  int straddling; /* some rows touch one cache line more than their size needs */
  void *zeros;    /* a row of them */
  _Atomic int cold;
} Rows;

/* Returns the segment of a row. */
INLINE uint32_t segment_of(const Map *map, int64_t row) {
  if (map->segments == 1) return 0;
  const int64_t bucket = row >> map->shift;
  uint32_t low = map->buckets[bucket], high = map->buckets[bucket + 1];
  while (low < high) { /* the last segment that begins at the row or before it */
    const uint32_t middle = low + (high - low + 1) / 2;
    if (map->starts[middle] <= row) low = middle;
    else high = middle - 1;
  }
  return low;
}

/* Finds the addresses of rows in one or more segments; see locate. */
static void locate_among(const Map *map, const int64_t *rows, ptrdiff_t n, uintptr_t absent, uintptr_t *at) {
  const int64_t last = map->rows - 1;
  for (ptrdiff_t k = 0; k < n; k++) {
    const int64_t row = rows[k] < last ? rows[k] : last;
    if (row < 0) {
      at[k] = absent;
      continue;
    }
    at[k] = map->origins[segment_of(map, row)] + (uintptr_t)row * map->row_bytes;
  }
}

/* Replaces the addresses of the rows that deltas have; arguments as of locate. Misses of the caches are what it costs: each
   loop has those of a whole group in flight. */
EACH_CPU static void lay_over(const Map *map, const int64_t *rows, ptrdiff_t n, uintptr_t *at) {
  const int64_t last = map->rows - 1;
  for (ptrdiff_t first = 0; first < n; first += GROUP) {
    const ptrdiff_t end = n - first < GROUP ? n : first + GROUP;
    DeltaRow group[GROUP];
    ptrdiff_t known = 0, changed = 0;
    for (ptrdiff_t k = first; k < end; k++) {
      const int64_t row = rows[k] < last ? rows[k] : last;
      if (row < 0) continue;
      const Deltas *deltas = &map->deltas[segment_of(map, row)];
      if (!deltas->bits) continue;
      const int64_t number = row + deltas->shift;
      __builtin_prefetch(word_of(deltas, number));
      group[known++] = (DeltaRow){.deltas = deltas, .number = number, .k = k};
    }
    for (ptrdiff_t k = 0; k < known; k++) { /* keeps the changed rows; no CPU would predict a branch */
      const DeltaRow row = group[k];
      group[changed] = row;
      changed += is_changed(row.deltas, row.number);
    }
    for (DeltaRow *row = group; row < group + changed; row++) {
      row->slot = slot_of(row->deltas, row->number);
      __builtin_prefetch(row->slot);
    }
    for (const DeltaRow *row = group; row < group + changed; row++)
      at[row->k] = address_of(row->deltas, row->number, *row->slot, map->row_bytes);
  }
}

/* Finds the addresses of n rows. A negative row is at `absent`; a row past the end is taken for the last one. */
INLINE void locate(const Map *map, const int64_t *rows, ptrdiff_t n, uintptr_t absent, uintptr_t *restrict at,
                   ptrdiff_t row_bytes) {
  if (map->segments > 1) {
    locate_among(map, rows, n, absent, at);
  } else {
    const int64_t last = map->rows - 1;
    const uintptr_t origin = map->origins[0];
    for (ptrdiff_t k = 0; k < n; k++) {
      const int64_t row = rows[k] < last ? rows[k] : last;
      const uintptr_t address = origin + (uintptr_t)row * (uintptr_t)row_bytes;
      at[k] = row < 0 ? absent : address;
    }
  }
  if (map->deltas) lay_over(map, rows, n, at);
}

/* The addresses of the rows of a call, from number `first` to `end`, and of AHEAD more. */
typedef struct {
  ptrdiff_t first, end, known;
  uintptr_t at[WINDOW + AHEAD];
  uintptr_t scale[WINDOW + AHEAD]; /* of INT8 */
} Window;

static const float NO_SCALE = 0;

/* Returns by how many rows the prefetch of a row is ahead of its use. */
INLINE ptrdiff_t ahead_of(Stored stored, ptrdiff_t row_bytes) {
  const ptrdiff_t whole = (row_bytes + LINE - 1) / LINE, lines = whole < LINES_AHEAD ? whole : LINES_AHEAD;
  const ptrdiff_t rows = PREFETCHED_LINES / (lines + (stored == INT8));
  return rows < AHEAD ? rows : AHEAD;
}

INLINE void prefetch(const Rows *from, const Window *window, ptrdiff_t k, Stored stored, ptrdiff_t row_bytes) {
  const char *at = (const char *)window->at[k];
  for (ptrdiff_t line = 0; line < row_bytes && line < LINES_AHEAD * LINE; line += LINE) __builtin_prefetch(at + line);
  if (from->straddling && row_bytes < LINES_AHEAD * LINE) __builtin_prefetch(at + row_bytes - 1);
  if (stored == INT8) __builtin_prefetch((const void *)window->scale[k]);
}

/* Advises the kernel of a window's rows, and updates for how many more rows the table is cold. */
static void advise_window(Rows *from, const Window *window, uintptr_t absent) {
  pages_read();
  if (window->known >= FEW_ROWS) {
    advise_pages(window->at, window->known, absent, from->values.row_bytes);
    if (from->stored == INT8) advise_pages(window->scale, window->known, (uintptr_t)&NO_SCALE, sizeof(float));
  }
  from->cold = left_cold(from->cold, window->end - window->first, pages_read());
}

/* Moves the window to the rows from number k on, up to `n` in all; prefetches the first ones if nothing has yet. */
INLINE void advance(Rows *from, const int64_t *rows, ptrdiff_t k, ptrdiff_t n, uintptr_t absent, Window *window,
                    Stored stored, ptrdiff_t row_bytes) {
  const ptrdiff_t left = n - k, known = left < WINDOW + AHEAD ? left : WINDOW + AHEAD;
  const int begins = window->end == 0;
  window->first = k;
  window->end = k + (left < WINDOW ? left : WINDOW);
  window->known = known;
  locate(&from->values, rows + k, known, absent, window->at, row_bytes);
  if (stored == INT8) locate(&from->scales, rows + k, known, (uintptr_t)&NO_SCALE, window->scale, sizeof(float));
  if (from->cold) advise_window(from, window, absent);
  if (begins)
    for (ptrdiff_t next = 0; next < known && next < ahead_of(stored, row_bytes); next++)
      prefetch(from, window, next, stored, row_bytes);
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

INLINE float value_at(const char *at, ptrdiff_t i, Stored stored, float scale) {
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

INLINE void take_loop(Rows *from, const int64_t *rows, ptrdiff_t n, char *out, ptrdiff_t stride, Stored stored,
                      ptrdiff_t dim) {
  const ptrdiff_t row_bytes = dim * width(stored), ahead = ahead_of(stored, row_bytes);
  Window window;
  window.end = 0;
  for (ptrdiff_t first = 0; first < n; first += WINDOW) {
    advance(from, rows, first, n, (uintptr_t)from->zeros, &window, stored, row_bytes);
    for (ptrdiff_t k = 0; k < window.end - first; k++) {
      if (k + ahead < window.known) prefetch(from, &window, k + ahead, stored, row_bytes);
      const float scale = stored == INT8 ? *(const Float *)window.scale[k] : 1;
      float *restrict to = (float *)(out + (first + k) * stride);
      if (stored == FLOAT32) memcpy(to, (const void *)window.at[k], (size_t)row_bytes);
      else
        for (ptrdiff_t i = 0; i < dim; i++) to[i] = value_at((const char *)window.at[k], i, stored, scale);
    }
  }
}

INLINE void begin_sums(float *restrict sums, const char *restrict at, Stored stored, float scale, float weight,
                       ptrdiff_t dim) {
  for (ptrdiff_t i = 0; i < dim; i++) sums[i] = value_at(at, i, stored, scale) * weight;
}

INLINE void add_row(float *restrict sums, const char *restrict at, Stored stored, float scale, float weight,
                    ptrdiff_t dim) {
  for (ptrdiff_t i = 0; i < dim; i++) sums[i] += value_at(at, i, stored, scale) * weight;
}

/* Adds the rows of a bag in their order, as bundle/tables/combiner.py does: the first row is copied, not added to 0. */
INLINE void bags_loop(Rows *from, const int64_t *rows, const int64_t *offsets, ptrdiff_t n, const float *weights,
                      Combiner combiner, char *out, ptrdiff_t stride, Stored stored, ptrdiff_t dim, int weighted) {
  const ptrdiff_t row_bytes = dim * width(stored), rows_end = offsets[n], ahead = ahead_of(stored, row_bytes);
  Window window;
  window.end = 0;
  for (ptrdiff_t bag = 0; bag < n; bag++) {
    float *restrict sums = (float *)(out + bag * stride);
    int64_t count = 0;
    float divisor = 0;
    for (ptrdiff_t row = offsets[bag]; row < offsets[bag + 1]; row++) {
      if (row >= window.end) advance(from, rows, row, rows_end, 0, &window, stored, row_bytes);
      const ptrdiff_t k = row - window.first;
      if (k + ahead < window.known) prefetch(from, &window, k + ahead, stored, row_bytes);
      const char *at = (const char *)window.at[k];
      if (!at) continue;
      const float scale = stored == INT8 ? *(const Float *)window.scale[k] : 1;
      const float weight = weighted ? weights[row] : 1; /* times 1 changes nothing */
      if (count++ == 0) begin_sums(sums, at, stored, scale, weight, dim);
      else add_row(sums, at, stored, scale, weight, dim);
      if (weighted) {
        const float part = combiner == SQRTN ? weight * weight : weight;
        divisor = count == 1 ? part : divisor + part;
      }
    }
    if (!weighted) divisor = (float)count;
    if (combiner == SQRTN) divisor = sqrtf(divisor);
    if (count == 0 || (combiner != SUM && divisor == 0)) memset(sums, 0, (size_t)dim * sizeof(float));
    else if (combiner != SUM)
      for (ptrdiff_t i = 0; i < dim; i++) sums[i] /= divisor;
  }
}

/* A loop for the usual widths of the usual dtypes, and one for any. */
#define FOR_WIDTH(loop, stored)       \
  switch (from->dim) {                \
    case 16: loop(stored, 16); break; \
    case 32: loop(stored, 32); break; \
    case 64: loop(stored, 64); break; \
    default: loop(stored, from->dim); \
  }
#define FOR_EACH(loop)                                     \
  switch (from->stored) {                                  \
    case FLOAT32: FOR_WIDTH(loop, FLOAT32) break;          \
    case BFLOAT16: FOR_WIDTH(loop, BFLOAT16) break;        \
    case FLOAT16: loop(FLOAT16, from->dim); break;         \
    case INT8: FOR_WIDTH(loop, INT8) break;                \
  }
#define FOR_ANY(loop)                                      \
  switch (from->stored) {                                  \
    case FLOAT32: loop(FLOAT32, from->dim); break;         \
    case BFLOAT16: loop(BFLOAT16, from->dim); break;       \
    case FLOAT16: loop(FLOAT16, from->dim); break;         \
    case INT8: loop(INT8, from->dim); break;               \
  }

EACH_CPU static void take_any(Rows *from, const int64_t *rows, ptrdiff_t n, char *out, ptrdiff_t stride) {
#define TAKE(stored, dim) take_loop(from, rows, n, out, stride, stored, dim)
  FOR_EACH(TAKE)
}

EACH_CPU static void combine_any(Rows *from, const int64_t *rows, const int64_t *offsets, ptrdiff_t n,
                                 const float *weights, Combiner combiner, char *out, ptrdiff_t stride) {
#define PLAIN(stored, dim) bags_loop(from, rows, offsets, n, NULL, combiner, out, stride, stored, dim, 0)
#define WEIGHTED(stored, dim) bags_loop(from, rows, offsets, n, weights, combiner, out, stride, stored, dim, 1)
  if (weights) FOR_ANY(WEIGHTED)
  else FOR_EACH(PLAIN)
}

/* Advises the kernel of the first of n rows, where other tables are read before them. */
static void advise_rows(Rows *from, const int64_t *rows, ptrdiff_t n) {
  Window window;
  window.first = 0;
  window.end = window.known = n < WINDOW ? n : WINDOW;
  locate(&from->values, rows, window.known, 0, window.at, (ptrdiff_t)from->values.row_bytes);
  if (from->stored == INT8)
    locate(&from->scales, rows, window.known, (uintptr_t)&NO_SCALE, window.scale, sizeof(float));
  advise_window(from, &window, 0);
}

/* Reads n rows into rows of `out`, `stride` bytes apart; a negative row gives zeros, one past the end the last. */
static void take_rows(Rows *from, const int64_t *rows, ptrdiff_t n, char *out, ptrdiff_t stride) {
  const int64_t begun_ns = from->cold ? 0 : now_ns();
  take_any(from, rows, n, out, stride);
  if (begun_ns) from->cold = found_cold(begun_ns, n);
}

/* Combines the rows of n bags into rows of `out`. `weights` may be NULL: all 1. `offsets` were checked. */
static void combine_bags(Rows *from, const int64_t *rows, const int64_t *offsets, ptrdiff_t n, const float *weights,
                         Combiner combiner, char *out, ptrdiff_t stride) {
  const int64_t begun_ns = from->cold ? 0 : now_ns();
  combine_any(from, rows, offsets, n, weights, combiner, out, stride);
  if (begun_ns) from->cold = found_cold(begun_ns, offsets[n] - offsets[0]);
}

#endif
