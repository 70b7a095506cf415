/* Latencies in nanoseconds: log-linear buckets, 128 per power of two (an error below 0.8 %), up to 2^40 ns. */
#ifndef BENCH_HISTOGRAM_H
#define BENCH_HISTOGRAM_H

#include <stdint.h>

#define HISTOGRAM_SUBBITS 7
#define HISTOGRAM_BUCKETS ((41 - HISTOGRAM_SUBBITS) << HISTOGRAM_SUBBITS)

struct histogram {
    uint64_t count, sum, max;
    uint64_t bucket[HISTOGRAM_BUCKETS];
};

void histogram_add(struct histogram *histogram, uint64_t ns);

/* The smallest bucket's middle at or above which no more than 1 - share of the samples lie, in ns; 0 where empty. */
uint64_t histogram_quantile(const struct histogram *histogram, double share);

#endif
