/* Helpers of the projection and vector checks: a seeded generator, buffers that end at an unmapped page, values
 * that provoke, and comparison of bits. A buffer that cannot be had ends the test program. */
#ifndef CHECK_GEMM_H
#define CHECK_GEMM_H

#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <time.h>
#include <unistd.h>

#include "base/half.h"

static uint64_t cg_state;

/* From SLUICE_TEST_SEED, else the clock; printed. */
static inline void cg_seed(void)
{
    const char *text = getenv("SLUICE_TEST_SEED");
    uint64_t seed = text ? strtoull(text, NULL, 0) : (uint64_t)time(NULL);
    printf("seed %llu\n", (unsigned long long)seed);
    cg_state = seed * 0x9e3779b97f4a7c15u + 1;
}

static inline uint64_t cg_next(void)
{
    cg_state += 0x9e3779b97f4a7c15u; /* splitmix64 */
    uint64_t z = cg_state;
    z = (z ^ z >> 30) * 0xbf58476d1ce4e5b9u;
    z = (z ^ z >> 27) * 0x94d049bb133111ebu;
    return z ^ z >> 31;
}

static inline size_t cg_below(size_t n)
{
    return (size_t)(cg_next() % n);
}

static inline float cg_unit(void)
{
    return (float)(int32_t)(cg_next() >> 40) * 0x1p-23f - 1.0f;
}

typedef struct cg_buf {
    void *map;
    size_t map_bytes;
    uint8_t *data; /* `size` bytes, the last in front of an unmapped page */
    size_t size;
} cg_buf;

static inline cg_buf cg_alloc(size_t size)
{
    size_t page = (size_t)sysconf(_SC_PAGESIZE);
    size_t room = (size + page - 1) / page * page;
    uint8_t *map = mmap(NULL, room + 2 * page, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (map == MAP_FAILED || (room > 0 && mprotect(map + page, room, PROT_READ | PROT_WRITE) != 0))
        abort();
    return (cg_buf){map, room + 2 * page, map + page + room - size, size};
}

static inline void cg_free(cg_buf *buf)
{
    munmap(buf->map, buf->map_bytes);
}

static inline float *cg_floats(const cg_buf *buf)
{
    return (float *)(void *)buf->data;
}

/* A recognisable number in every float (0x7f7f7f7f), so that what was not written, or wrongly written, shows. */
static inline void cg_prefill(const cg_buf *buf)
{
    memset(buf->data, 0x7f, buf->size);
}

typedef enum cg_mode {
    CG_MODE_NORMAL,  /* around one */
    CG_MODE_WIDE,    /* any finite exponent, zeros of both signs */
    CG_MODE_TINY,    /* denormals and the edge of "scale 0" */
    CG_MODE_EXTREME, /* the same largest magnitude everywhere */
    CG_MODE_SPECIAL, /* infinities and NaN among the rest */
    CG_MODE_COUNT
} cg_mode;

static inline float cg_value(cg_mode mode)
{
    uint32_t bits = (uint32_t)cg_next();
    switch (mode) {
    case CG_MODE_WIDE:
        if (cg_below(8) == 0)
            return bits & 1 ? -0.0f : 0.0f;
        return (bits & 0x7f800000u) == 0x7f800000u ? cg_unit() : sl_float_of_bits(bits);
    case CG_MODE_TINY:
        return cg_below(2) ? sl_float_of_bits(bits & 0x807fffffu) : cg_unit() * 0x1.02p-100f;
    case CG_MODE_EXTREME:
        return bits & 1 ? 3.0f : -3.0f;
    case CG_MODE_SPECIAL:
        if (cg_below(40) == 0)
            return sl_float_of_bits(0x7f800000u | (bits & 0x80000000u) | (bits & 1) * (bits & 0x7fffffu));
        return cg_unit();
    default:
        return cg_unit() + cg_unit();
    }
}

static inline void cg_fill(float *x, size_t n, cg_mode mode)
{
    for (size_t i = 0; i < n; i++)
        x[i] = cg_value(mode);
}

/* Equal bits; a NaN equals any NaN, whose payload IEEE 754 leaves open. */
static inline bool cg_same(float a, float b)
{
    return sl_bits_of_float(a) == sl_bits_of_float(b) || (a != a && b != b);
}

/* Index of the first difference, n if none. */
static inline size_t cg_differ(const float *a, const float *b, size_t n)
{
    size_t i = 0;
    while (i < n && cg_same(a[i], b[i]))
        i++;
    return i;
}

#endif
