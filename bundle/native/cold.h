/* Rows that lie on the disk and not in memory. At a fault, the kernel reads one page, and the thread waits for it; advised
   of all pages beforehand, it reads many at once. Advice costs about a hundredth of a read, so it is given only for a
   table of which enough was read from the disk lately: for `cold` more rows. */
#ifndef ROWCAST_COLD_H
#define ROWCAST_COLD_H

#include <stdint.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <time.h>
#include <unistd.h>

#define COLD_ROWS 8192       /* rows that are advised of in vain before a table counts as being in memory */
#define CALL_ROWS 128        /* rows that a smaller call counts as: a context's one row would keep its table cold for ever */
#define FEW_ROWS 4           /* calls of fewer rows gain nothing from advice */
#define ADVISED_PER_READ 128 /* rows that may be advised of for a page that is then read */
#define SLOW_NS 20000        /* the time of a call, with SLOW_ROW_NS for each row, beyond which pages read are counted */
#define SLOW_ROW_NS 100
#define DISK_BLOCK 512 /* bytes that the kernel counts as one block */

/* Returns the bytes of a page: 4 KiB on x86-64, up to 64 KiB on aarch64. */
static uintptr_t page_bytes(void) { return (uintptr_t)sysconf(_SC_PAGESIZE); }

/* Advises the kernel which pages will be read: those of [n] rows at any addresses, except rows at `absent`. */
static void advise_pages(const uintptr_t *at, ptrdiff_t n, uintptr_t absent, size_t row_bytes) {
  const uintptr_t within_page = page_bytes() - 1;
  uintptr_t last = 0;
  for (ptrdiff_t k = 0; k < n; k++) {
    const uintptr_t first = at[k] & ~within_page;
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

/* Returns the number of pages that were read from disks for this thread since the last call, at faults or by advice. */
static long pages_read(void) {
#ifdef RUSAGE_THREAD
  static _Thread_local long seen;
  struct rusage used;
  if (getrusage(RUSAGE_THREAD, &used)) return 0;
  const long blocks = used.ru_inblock / (long)(page_bytes() / DISK_BLOCK), before = seen;
  seen = blocks > used.ru_majflt ? blocks : used.ru_majflt;
  return seen - before;
#else
  return 0;
#endif
}

static int enough(long read, ptrdiff_t rows) { return read > 0 && read * ADVISED_PER_READ >= rows; }

/* Returns for how many more rows a table counts as cold, after `advised` rows were advised of and `read` pages were read
   for it. */
static int left_cold(int cold, ptrdiff_t advised, long read) {
  if (enough(read, advised)) return COLD_ROWS;
  if (advised < CALL_ROWS) advised = CALL_ROWS;
  return cold > advised ? cold - (int)advised : 0;
}

/* Returns the same after a call of n rows of a table that was not cold: it becomes cold if the call waited for the disk. */
static int found_cold(int64_t begun_ns, ptrdiff_t n) {
  return now_ns() - begun_ns > SLOW_NS + n * SLOW_ROW_NS && enough(pages_read(), n) ? COLD_ROWS : 0;
}

#endif
