/* What the memory gives: rows of 32 values out of a mapped file by a plain loop that asks for them ahead.

   lookups DTYPE ROWS_FILE SCALES_FILE|- IDS_FILE CALL BAG, then lines `AHEAD THREADS SECONDS CLOCK` from stdin;
   answers each with rows per second over all threads, CLOCK 0: of wall-clock, 1: of processor time. CALL rows are read
   as one call would, into the same buffer; BAG > 1: as sums of BAG rows. Built for the machine it runs on; knows of no bounds, shards or other widths. */
#define _GNU_SOURCE
#include <fcntl.h>
#include <pthread.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <time.h>

#define DIM 32

typedef enum { F32, BF16, INT8 } Dtype;

static const char *table;
static const float *scales;
static const int64_t *ids;
static long ids_count, call, bag;
static Dtype dtype;
static clockid_t clock_used;

typedef struct {
  long first, ahead;
  double seconds, rows, took;
} Job;

static double now(clockid_t clock) {
  struct timespec at;
  clock_gettime(clock, &at);
  return (double)at.tv_sec + 1e-9 * (double)at.tv_nsec;
}

static const void *mapped(const char *path, size_t *bytes) {
  const int file = open(path, O_RDONLY);
  struct stat status;
  if (file < 0 || fstat(file, &status)) exit(2);
  const void *memory = mmap(NULL, (size_t)status.st_size, PROT_READ, MAP_SHARED | MAP_POPULATE, file, 0);
  if (memory == MAP_FAILED) exit(2);
  *bytes = (size_t)status.st_size;
  return memory;
}

static inline __attribute__((always_inline)) void read_call(const int64_t *row, long ahead, float *out, const Dtype type,
                                                            const int sums) {
  const long width = type == F32 ? 4 * DIM : type == BF16 ? 2 * DIM : DIM;
  for (long k = 0; k < call; k++) {
    const char *next = table + row[k + ahead] * width; /* the ids go on behind the call */
    for (long line = 0; line < width; line += 64) __builtin_prefetch(next + line);
    if (type == INT8) __builtin_prefetch(scales + row[k + ahead]);
    const char *at = table + row[k] * width;
    const float scale = type == INT8 ? scales[row[k]] : 1;
    float *to = out + (sums ? k / bag : k) * DIM;
    const int adds = sums && k % bag;
    float values[DIM];
    for (int i = 0; i < DIM; i++) {
      if (type == F32) values[i] = ((const float *)at)[i];
      else if (type == INT8) values[i] = (float)((const int8_t *)at)[i] * scale;
      else {
        const uint32_t bits = (uint32_t)((const uint16_t *)at)[i] << 16;
        memcpy(values + i, &bits, 4);
      }
    }
    if (adds)
      for (int i = 0; i < DIM; i++) to[i] += values[i];
    else memcpy(to, values, sizeof values);
  }
}

static void *run(void *given) {
  Job *job = given;
  float *out = aligned_alloc(64, (size_t)call * DIM * 4);
  long at = job->first;
  memset(out, 0, (size_t)call * DIM * 4);
  const double end = now(CLOCK_MONOTONIC) + job->seconds, begun = now(clock_used);
  do {
    const int64_t *row = ids + at;
    if (dtype == F32) bag > 1 ? read_call(row, job->ahead, out, F32, 1) : read_call(row, job->ahead, out, F32, 0);
    else if (dtype == BF16) bag > 1 ? read_call(row, job->ahead, out, BF16, 1) : read_call(row, job->ahead, out, BF16, 0);
    else bag > 1 ? read_call(row, job->ahead, out, INT8, 1) : read_call(row, job->ahead, out, INT8, 0);
    at = at + 2 * call + 128 > ids_count ? 0 : at + call;
    job->rows += (double)call;
  } while (now(CLOCK_MONOTONIC) < end);
  job->took = now(clock_used) - begun;
  free(out);
  return NULL;
}

int main(int count, char **words) {
  if (count != 7) return 2;
  size_t bytes;
  dtype = !strcmp(words[1], "float32") ? F32 : !strcmp(words[1], "bfloat16") ? BF16 : INT8;
  table = mapped(words[2], &bytes);
  if (dtype == INT8) scales = mapped(words[3], &bytes);
  ids = mapped(words[4], &bytes);
  ids_count = (long)(bytes / 8);
  call = atol(words[5]), bag = atol(words[6]);
  long ahead, threads;
  int processor;
  double seconds;
  while (scanf("%ld %ld %lf %d", &ahead, &threads, &seconds, &processor) == 4) {
    clock_used = processor ? CLOCK_THREAD_CPUTIME_ID : CLOCK_MONOTONIC;
    Job jobs[64];
    pthread_t running[64];
    double rate = 0;
    for (long t = 0; t < threads; t++) {
      jobs[t] = (Job){.first = ids_count / threads * t, .ahead = ahead, .seconds = seconds};
      pthread_create(running + t, NULL, run, jobs + t);
    }
    for (long t = 0; t < threads; t++) {
      pthread_join(running[t], NULL);
      rate += jobs[t].rows / jobs[t].took;
    }
    printf("%.6g\n", rate);
    fflush(stdout);
  }
  return 0;
}
