/* Shared by the kernel checks: buffers that end at an unmapped page, a seeded generator, unpleasant values. */
#ifndef SL_TEST_CHECK_H
#define SL_TEST_CHECK_H

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <time.h>
#include <unistd.h>

#include <cmocka.h>

#include "base/half.h"
#include "kernel/kernel.h"

/* ---- memory ---- */

/* `bytes` at `data`, aligned to `align`, as close to an unmapped page as the alignment lets it. */
typedef struct check_buf {
    void *map;
    size_t map_bytes;
    void *data;
    size_t bytes;
} check_buf;

static inline check_buf check_buf_new(size_t bytes, size_t align)
{
    size_t page = (size_t)sysconf(_SC_PAGESIZE), body = (bytes + align + page - 1) / page * page;
    check_buf buf = {NULL, body + page, NULL, bytes};
    buf.map = mmap(NULL, buf.map_bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    assert_true(buf.map != MAP_FAILED);
    assert_int_equal(mprotect((uint8_t *)buf.map + body, page, PROT_NONE), 0);
    buf.data = (uint8_t *)buf.map + (body - bytes) / align * align;
    memset(buf.data, 0xa5, bytes); /* an output that is not written shows */
    return buf;
}

static inline void check_buf_free(check_buf *buf)
{
    assert_int_equal(munmap(buf->map, buf->map_bytes), 0);
    *buf = (check_buf){NULL, 0, NULL, 0};
}

/* ---- random numbers ---- */

typedef struct check_rng {
    uint64_t state;
} check_rng;

/* Splitmix64 (Steele, Lea, Flood 2014). */
static inline uint64_t check_rng_u64(check_rng *rng)
{
    uint64_t z = rng->state += 0x9e3779b97f4a7c15u;
    z = (z ^ z >> 30) * 0xbf58476d1ce4e5b9u;
    z = (z ^ z >> 27) * 0x94d049bb133111ebu;
    return z ^ z >> 31;
}

static inline uint64_t check_rng_below(check_rng *rng, uint64_t n)
{
    return check_rng_u64(rng) % n;
}

/* [0, 1) */
static inline double check_rng_unit(check_rng *rng)
{
    return (double)(check_rng_u64(rng) >> 11) * 0x1p-53;
}

/* Near enough to normal, mean 0, variance 1: the sum of twelve uniform numbers. */
static inline float check_rng_normal(check_rng *rng)
{
    double sum = -6.0;
    for (int i = 0; i < 12; i++)
        sum += check_rng_unit(rng);
    return (float)sum;
}

/* The run's seed: SLUICE_TEST_SEED, else from the clock; printed, so that a failure can be repeated. */
static inline uint64_t check_seed(void)
{
    static uint64_t seed;
    static int known;
    if (!known) {
        const char *text = getenv("SLUICE_TEST_SEED");
        seed = text ? strtoull(text, NULL, 0) : (uint64_t)time(NULL) * 1000003u;
        known = 1;
        printf("SLUICE_TEST_SEED=%llu\n", (unsigned long long)seed);
    }
    return seed;
}

/* ---- values ---- */

typedef enum check_values {
    CHECK_VALUES_NORMAL,
    CHECK_VALUES_ZERO, /* of both signs */
    CHECK_VALUES_DENORMAL,
    CHECK_VALUES_HUGE,
    CHECK_VALUES_EQUAL,   /* one value everywhere */
    CHECK_VALUES_OUTLIER, /* one element a thousand times the others */
    CHECK_VALUES_MIXED,   /* magnitudes from 2^-40 to 2^8, some zeros */
    CHECK_VALUES_COUNT
} check_values;

static inline float check_value(check_rng *rng, check_values kind, float huge)
{
    float sign = check_rng_u64(rng) & 1 ? -1.0f : 1.0f;
    switch (kind) {
    case CHECK_VALUES_ZERO:
        return 0.0f * sign;
    case CHECK_VALUES_DENORMAL:
        return sl_float_of_bits((uint32_t)check_rng_below(rng, 0x7fffff)) * sign;
    case CHECK_VALUES_HUGE:
        return huge * sign * (float)(0.5 + 0.5 * check_rng_unit(rng));
    case CHECK_VALUES_EQUAL:
        return 0.37f;
    case CHECK_VALUES_MIXED:
        if (check_rng_below(rng, 8) == 0)
            return 0.0f * sign;
        return sl_float_of_bits((uint32_t)(87 + check_rng_below(rng, 48)) << 23 |
                                (uint32_t)(check_rng_u64(rng) & 0x7fffff)) *
               sign;
    default:
        return check_rng_normal(rng);
    }
}

/* `huge` is the largest magnitude of CHECK_VALUES_HUGE. */
static inline void check_fill(check_rng *rng, check_values kind, float huge, float *x, size_t n)
{
    for (size_t i = 0; i < n; i++)
        x[i] = check_value(rng, kind, huge);
    if (kind == CHECK_VALUES_OUTLIER && n > 0)
        x[check_rng_below(rng, n)] *= 1000.0f;
}

/* Bits of two float arrays, elements `stride` apart; on a difference says where. */
static inline void check_same(const float *got, const float *want, size_t n, size_t stride, const char *what)
{
    for (size_t i = 0; i < n; i++) {
        uint32_t a = sl_bits_of_float(got[i * stride]), b = sl_bits_of_float(want[i * stride]);
        if (a != b)
            fail_msg("%s, element %zu: %a (%08x), reference %a (%08x)", what, i, (double)got[i * stride], (unsigned)a,
                     (double)want[i * stride], (unsigned)b);
    }
}

#endif
