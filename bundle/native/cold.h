/* Rows that lie on the disk and not in memory. The kernel reads one page at a fault and the thread waits for it; told of
   all pages beforehand it reads many at once. Telling costs about as much as a hundredth of a read, so it is done only
   for a table of which enough was read from the disk lately: `cold` rows more. */
#ifndef ROWCAST_COLD_H
#define ROWCAST_COLD_H

#include <stdint.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <time.h>

#define COLD_ROWS 8192    /* told of in vain before a table counts as being in memory */
#define CALL_ROWS 128     /* that a call of fewer counts as: a context's row alone would keep its table cold for ever */
#define FEW_ROWS 4        /* of a call that gains nothing */
#define TOLD_PER_READ 128 /* rows that may be told of for a page that is then read */
#define SLOW_NS 20000     /* what a call takes, beside SLOW_ROW_NS for a row, before it is asked why */
#define SLOW_ROW_NS 100
#define PAGE 4096

/* Tells the kernel which pages will be read: those of [n] rows at any addresses; `absent` is none of them. */
static void tell_pages(const uintptr_t *at, ptrdiff_t n, uintptr_t absent, size_t row_bytes) {
  uintptr_t last = 0;
  for (ptrdiff_t k = 0; k < n; k++) {
    const uintptr_t first = at[k] & ~(uintptr_t)(PAGE - 1);
    if (at[k] == absent || first == last) continue;
    madvise((void *)first, at[k] + row_bytes - first, MADV_WILLNEED); /* advice: a failure means nothing */
    last = first;
  }
}

static int64_t now_ns(void) {
  struct timespec at;
  clock_gettime(CLOCK_MONOTONIC, &at);
  return at.tv_sec * INT64_C(1000000000) + at.tv_nsec;
}

/* Pages that this thread had read from disks since it was asked last, at faults or because it told of them; the kernel
   counts them when they are asked for. */
static long pages_read(void) {
#ifdef RUSAGE_THREAD
  static _Thread_local long seen;
  struct rusage used;
  if (getrusage(RUSAGE_THREAD, &used)) return 0;
  const long told = used.ru_inblock / (PAGE / 512), before = seen;
  seen = told > used.ru_majflt ? told : used.ru_majflt;
  return seen - before;
#else
  return 0;
#endif
}

static int enough(long read, ptrdiff_t rows) { return read > 0 && read * TOLD_PER_READ >= rows; }

/* Of how many rows more a table counts as cold, after `told` were told of and `read` pages were read for it. */
static int left_cold(int cold, ptrdiff_t told, long read) {
  if (enough(read, told)) return COLD_ROWS;
  if (told < CALL_ROWS) told = CALL_ROWS;
  return cold > told ? cold - (int)told : 0;
}

/* The same after a call of n rows of a table that was not cold: it is if the call waited for the disk. */
static int found_cold(int64_t begun_ns, ptrdiff_t n) {
  return now_ns() - begun_ns > SLOW_NS + n * SLOW_ROW_NS && enough(pages_read(), n) ? COLD_ROWS : 0;
}

#endif
