/* Rows that lie in deltas and not in the file of their segment. Which these are, and where they lie, follows from the
   directory that ChangedRanges (bundle/tables/row_deltas.py) makes of the deltas: nothing is searched. Part of kernels.h. */
#ifndef ROWCAST_DELTAS_H
#define ROWCAST_DELTAS_H

#include <stddef.h>
#include <stdint.h>

#define RANGE_SHIFT 16 /* a range is 2^16 rows: a position among the rows of one takes 16 bits */
#define BLOCK_SHIFT 9  /* rows that share a rank: a cache line of bits */
#define WORD_SHIFT 6
#define BLOCK_WORDS (1 << (BLOCK_SHIFT - WORD_SHIFT))
#define RANGE_BLOCKS (1 << (RANGE_SHIFT - BLOCK_SHIFT))
#define POSITION_MASK ((1 << RANGE_SHIFT) - 1)
#define DELTAS_MAX 64 /* of a segment; the format has fewer */

/* The directory of a segment's deltas. Rows have the numbers that they have in the deltas. */
typedef struct {
  int64_t shift;         /* from a row of the table to its number */
  const uint64_t *bits;  /* [ranges * 1024], whether a delta has a row, from the lowest bit on; NULL: there are no deltas */
  const uint32_t *ranks; /* [ranges * 128], the number of such rows before each block */
  const uint32_t *slots; /* of each such row: delta << 16 | position among the rows of its range there */
  const uint64_t *frames; /* [deltas, ranges], the address of the first row of each range in each delta */
  size_t ranges;
} Deltas;

/* A row of a call that deltas may have. */
typedef struct {
  const Deltas *deltas;
  int64_t number;
  ptrdiff_t k;          /* which row of the call it is */
  const uint32_t *slot; /* of a changed row */
} DeltaRow;

INLINE const uint64_t *word_of(const Deltas *deltas, int64_t number) { return deltas->bits + (number >> WORD_SHIFT); }

INLINE int is_changed(const Deltas *deltas, int64_t number) { return *word_of(deltas, number) >> (number & 63) & 1; }

/* Returns where the slot of a changed row is: behind those of the changed rows before it. */
INLINE const uint32_t *slot_of(const Deltas *deltas, int64_t number) {
  const int64_t block = number >> BLOCK_SHIFT, word = number >> WORD_SHIFT & (BLOCK_WORDS - 1);
  const uint64_t *bits = deltas->bits + block * BLOCK_WORDS, below = (UINT64_C(1) << (number & 63)) - 1;
  uint32_t rank = deltas->ranks[block];
  for (int64_t k = 0; k < BLOCK_WORDS; k++) { /* all words, as no CPU predicts how many are before the row's */
    const uint64_t mask = k < word ? UINT64_MAX : k == word ? below : 0;
    rank += (uint32_t)__builtin_popcountll(bits[k] & mask);
  }
  return deltas->slots + rank;
}

/* Returns the address of a changed row of a slot. */
INLINE uintptr_t address_of(const Deltas *deltas, int64_t number, uint32_t slot, size_t row_bytes) {
  const size_t delta = slot >> RANGE_SHIFT, position = slot & POSITION_MASK;
  return (uintptr_t)deltas->frames[delta * deltas->ranges + (size_t)(number >> RANGE_SHIFT)] + position * row_bytes;
}

#endif
