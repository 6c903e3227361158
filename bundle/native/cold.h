/* Rows that lie on the disk and not in memory. The kernel reads one page at a fault and the thread waits for it; told of
   all pages beforehand it reads many at once. Telling costs about as much as a two-hundredth of a read, so it is done
   only for a table of which enough was read from the disk lately: `cold` calls more. */
#ifndef ROWCAST_COLD_H
#define ROWCAST_COLD_H

#include <stdint.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <time.h>

#define COLD_CALLS 16   /* calls in a row that read little before a table counts as being in memory */
#define FEW_ROWS 4      /* of a call that gains nothing */
#define TOLD_PER_READ 128 /* pages that may be told of for one that is then read */
#define SLOW_NS 20000   /* what a call takes, beside SLOW_ROW_NS for a row, before it is asked why */
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

/* Pages that this thread had read from disks since it began, at faults or because it told of them. */
static long pages_read(void) {
#ifdef RUSAGE_THREAD
  struct rusage used;
  if (getrusage(RUSAGE_THREAD, &used)) return 0;
  const long told = used.ru_inblock / (PAGE / 512);
  return told > used.ru_majflt ? told : used.ru_majflt;
#else
  return 0;
#endif
}

/* Watches one call. */
typedef struct {
  int64_t begun_ns;
  long read;
} Watch;

static Watch watch(int cold) { return (Watch){.begun_ns = now_ns(), .read = cold ? pages_read() : 0}; }

/* Returns for how many calls the table now counts as cold, after one of n rows. */
static int still_cold(Watch watched, int cold, ptrdiff_t n) {
  static _Thread_local long seen;
  if (!cold && now_ns() - watched.begun_ns < SLOW_NS + n * SLOW_ROW_NS) return 0;
  const long read = pages_read(), here = read - (cold ? watched.read : seen);
  seen = read;
  if (here && here * TOLD_PER_READ >= n) return COLD_CALLS;
  return cold ? cold - 1 : 0;
}

#endif
