#include "histogram.h"

#define SUB (UINT64_C(1) << HISTOGRAM_SUBBITS)

static unsigned bucket_of(uint64_t ns) {
    if (ns < SUB) return (unsigned)ns;
    unsigned exponent = 63u - (unsigned)__builtin_clzll(ns) - HISTOGRAM_SUBBITS;
    unsigned index = ((exponent + 1) << HISTOGRAM_SUBBITS) + (unsigned)((ns >> exponent) - SUB);
    return index < HISTOGRAM_BUCKETS ? index : HISTOGRAM_BUCKETS - 1;
}

static uint64_t middle_of(unsigned index) {
    if (index < SUB) return index;
    unsigned exponent = (index >> HISTOGRAM_SUBBITS) - 1;
    uint64_t low = (SUB + (index & (SUB - 1))) << exponent;
    return low + (UINT64_C(1) << exponent) / 2;
}

void histogram_add(struct histogram *histogram, uint64_t ns) {
    histogram->count++;
    histogram->sum += ns;
    if (ns > histogram->max) histogram->max = ns;
    histogram->bucket[bucket_of(ns)]++;
}

uint64_t histogram_quantile(const struct histogram *histogram, double share) {
    uint64_t rank = (uint64_t)(share * (double)histogram->count);
    if (rank >= histogram->count) rank = histogram->count ? histogram->count - 1 : 0;
    uint64_t seen = 0;
    for (unsigned index = 0; index < HISTOGRAM_BUCKETS; index++) {
        seen += histogram->bucket[index];
        if (seen > rank) return middle_of(index);
    }
    return 0;
}
