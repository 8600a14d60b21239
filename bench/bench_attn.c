/* Rate of attn_tile of each level beside what the same core can do: the peak of int16 dot products (Q8_0) or of
 * binary32 fma (F16) with vectors of the level's width (of avx512 for amx, too), measured in turn with the kernel. One
 * thread. Times are the thread's processor time; every figure is a median of five. 4 * queries * keys * D operations
 * count for a tile. Usage: bench_attn [seconds per figure]. CSV on stdout:
 * level,type,head_dim,queries,masked,gflops,peak,share. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "base/fpenv.h"
#include "kernel/kernel.h"

#if !defined(__x86_64__)
int main(void)
{
    puts("bench_attn: no vector kernels on this architecture");
    return 0;
}
#else
#include <immintrin.h>

enum { REPEATS = 5, N_TILES = 16, PEAK_STEPS = 20000 };

static double now_s(void)
{
    struct timespec t;
    clock_gettime(CLOCK_THREAD_CPUTIME_ID, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

static int by_value(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

/* ---- peaks: ten independent chains ---- */

#define EACH_CHAIN(X) X(0) X(1) X(2) X(3) X(4) X(5) X(6) X(7) X(8) X(9)

__attribute__((target("avx2,fma"))) static double peak_int16(void)
{
    const __m256i factor = _mm256_set1_epi16(3);
#define START(i) __m256i chain##i = _mm256_set1_epi32(i);
#define STEP(i)                                                                                                        \
    chain##i = _mm256_madd_epi16(chain##i, factor);                                                                    \
    __asm__ volatile("" : "+x"(chain##i));
    EACH_CHAIN(START)
    double start = now_s();
    for (int step = 0; step < PEAK_STEPS; step++) {
        EACH_CHAIN(STEP)
    }
    return PEAK_STEPS * 10.0 * 32 / (now_s() - start);
#undef START
#undef STEP
}

__attribute__((target("avx2,fma"))) static double peak_fma(void)
{
    const __m256 factor = _mm256_set1_ps(0.5f);
#define START(i) __m256 chain##i = _mm256_set1_ps(i);
#define STEP(i)                                                                                                        \
    chain##i = _mm256_fmadd_ps(chain##i, factor, factor);                                                              \
    __asm__ volatile("" : "+x"(chain##i));
    EACH_CHAIN(START)
    double start = now_s();
    for (int step = 0; step < PEAK_STEPS; step++) {
        EACH_CHAIN(STEP)
    }
    return PEAK_STEPS * 10.0 * 16 / (now_s() - start);
#undef START
#undef STEP
}

__attribute__((target("avx512f,avx512bw,avx512vl,avx512vnni"))) static double peak_int16_512(void)
{
    const __m512i factor = _mm512_set1_epi16(3);
#define START(i) __m512i chain##i = _mm512_set1_epi32(i);
#define STEP(i)                                                                                                        \
    chain##i = _mm512_dpwssd_epi32(chain##i, factor, factor);                                                          \
    __asm__ volatile("" : "+v"(chain##i));
    EACH_CHAIN(START)
    double start = now_s();
    for (int step = 0; step < PEAK_STEPS; step++) {
        EACH_CHAIN(STEP)
    }
    return PEAK_STEPS * 10.0 * 64 / (now_s() - start);
#undef START
#undef STEP
}

__attribute__((target("avx512f"))) static double peak_fma_512(void)
{
    const __m512 factor = _mm512_set1_ps(0.5f);
#define START(i) __m512 chain##i = _mm512_set1_ps(i);
#define STEP(i)                                                                                                        \
    chain##i = _mm512_fmadd_ps(chain##i, factor, factor);                                                              \
    __asm__ volatile("" : "+v"(chain##i));
    EACH_CHAIN(START)
    double start = now_s();
    for (int step = 0; step < PEAK_STEPS; step++) {
        EACH_CHAIN(STEP)
    }
    return PEAK_STEPS * 10.0 * 32 / (now_s() - start);
#undef START
#undef STEP
}

static double peak(sl_kv_type type, sl_cpu_level level)
{
    if (level == SL_CPU_LEVEL_AVX2)
        return type == SL_KV_TYPE_F16 ? peak_fma() : peak_int16();
    return type == SL_KV_TYPE_F16 ? peak_fma_512() : peak_int16_512();
}

/* ---- the kernel ---- */

typedef struct workload {
    sl_kernels kernels;
    sl_kv_type type;
    sl_tile_args args;
    uint8_t *tiles; /* [N_TILES] */
    double budget_s;
} workload;

static void *aligned_or_exit(size_t bytes)
{
    void *p = aligned_alloc(64, (bytes + 63) / 64 * 64);
    if (!p) {
        fputs("bench_attn: out of memory\n", stderr);
        exit(1);
    }
    return memset(p, 0, bytes);
}

static float uniform(void)
{
    static uint32_t state = 1;
    state = state * 1664525u + 1013904223u;
    return (float)(state >> 8) * 0x1p-23f - 1.0f;
}

static void fill(workload *w)
{
    size_t head_dim = w->args.head_dim, n_blocks = (w->args.n_queries + SL_LANES - 1) / SL_LANES;
    float rows[SL_LANES][SL_MAX_HEAD_DIM];
    const float *q[SL_LANES];
    for (size_t i = 0; i < N_TILES * SL_TILE; i++) {
        for (size_t d = 0; d < head_dim; d++) {
            rows[0][d] = uniform();
            rows[1][d] = uniform();
        }
        uint8_t *tile = w->tiles + i / SL_TILE * sl_tile_bytes(w->type, head_dim);
        if (!sl_kernels_kv_pack(&w->kernels, w->type)(tile, i % SL_TILE, rows[0], rows[1], head_dim))
            exit(1);
    }
    for (size_t b = 0; b < n_blocks; b++) {
        for (size_t i = 0; i < SL_LANES; i++) {
            q[i] = rows[i];
            for (size_t d = 0; d < head_dim; d++)
                rows[i][d] = 4.0f * uniform();
            ((float *)(void *)(w->args.states + b * w->args.state_stride))[i] = -INFINITY;
        }
        sl_kernels_attn_qpack(&w->kernels, w->type)((uint8_t *)w->args.qblocks + b * sl_qblock_bytes(w->type, head_dim),
                                                    q, SL_LANES, head_dim, SL_LOG2E / sqrtf((float)head_dim));
    }
}

static double kernel_rate(workload *w)
{
    double start = now_s(), spent;
    size_t n = 0;
    do {
        w->args.tile = w->tiles + n % N_TILES * sl_tile_bytes(w->type, w->args.head_dim);
        sl_kernels_attn_tile(&w->kernels, w->type)(&w->args);
        n++;
        spent = now_s() - start;
    } while (spent < w->budget_s);
    return 4.0 * (double)(n * w->args.n_queries * SL_TILE * w->args.head_dim) / spent;
}

static void measure(workload *w, sl_cpu_level level, const uint64_t *masks)
{
    size_t head_dim = w->args.head_dim, n_blocks = (w->args.n_queries + SL_LANES - 1) / SL_LANES;
    double rates[REPEATS], peaks[REPEATS], shares[REPEATS];
    uint8_t *qblocks = aligned_or_exit(n_blocks * sl_qblock_bytes(w->type, head_dim));
    sl_kernels_init(&w->kernels, level);
    w->tiles = aligned_or_exit(N_TILES * sl_tile_bytes(w->type, head_dim));
    w->args.qblocks = qblocks;
    w->args.state_stride = sl_state_bytes(head_dim);
    w->args.states = aligned_or_exit(n_blocks * w->args.state_stride);
    w->args.scratch = aligned_or_exit(sl_tile_scratch_bytes(w->type, head_dim));
    w->args.masks = masks;
    fill(w);
    for (int i = 0; i < REPEATS; i++) {
        peaks[i] = peak(w->type, level);
        rates[i] = kernel_rate(w);
        shares[i] = rates[i] / peaks[i];
    }
    qsort(rates, REPEATS, sizeof *rates, by_value);
    qsort(peaks, REPEATS, sizeof *peaks, by_value);
    qsort(shares, REPEATS, sizeof *shares, by_value);
    printf("%s,%s,%zu,%zu,%d,%.1f,%.1f,%.2f\n", sl_cpu_level_name(level), w->type == SL_KV_TYPE_F16 ? "f16" : "q8_0",
           head_dim, w->args.n_queries, masks != NULL, rates[REPEATS / 2] / 1e9, peaks[REPEATS / 2] / 1e9,
           shares[REPEATS / 2]);
    free(w->tiles);
    free(qblocks);
    free(w->args.states);
    free(w->args.scratch);
}

int main(int argc, char **argv)
{
    const size_t queries[] = {64, 16, 8, 3, 1}, head_dims[] = {64, 128};
    const sl_cpu_level levels[] = {SL_CPU_LEVEL_AVX2, SL_CPU_LEVEL_AVX512, SL_CPU_LEVEL_AMX};
    enum { N_LEVELS = sizeof levels / sizeof levels[0] };
    uint64_t diagonal[SL_TILE];
    for (size_t i = 0; i < SL_TILE; i++)
        diagonal[i] = UINT64_MAX >> (63 - i);
    sl_fpenv saved = sl_fpenv_enter();
    puts("level,type,head_dim,queries,masked,gflops,peak,share");
    for (size_t i = 0; i < N_LEVELS * SL_KV_TYPE_COUNT * 2 * 6; i++) {
        sl_cpu_level level = levels[i / (SL_KV_TYPE_COUNT * 2 * 6)];
        workload w = {.type = (sl_kv_type)(i / 12 % SL_KV_TYPE_COUNT), .budget_s = argc > 1 ? atof(argv[1]) : 0.05};
        w.args.head_dim = head_dims[i / 6 % 2];
        w.args.n_queries = i % 6 < 5 ? queries[i % 6] : SL_TILE;
        if (sl_cpu_has(level))
            measure(&w, level, i % 6 < 5 ? NULL : diagonal);
    }
    sl_fpenv_leave(saved);
    return 0;
}
#endif
