/* Rate of attn_tile of each level beside what the same core can do: the peak of int16 dot products (Q8_0) or of
 * binary32 fma (F16) with vectors of the level's width (of avx512 for amx, too), and a plain reading of the same tiles,
 * measured in turn with the kernel. One thread. Times are the thread's processor time; every figure is a median of
 * five, with minimum and maximum of the tile bytes a second: what counts for few queries. 4 * queries * keys * D
 * operations count for a tile.
 *
 *   bench_attn [seconds per figure [MiB of tiles]]     default: 0.05, 16 tiles (in the cache)
 *
 * CSV on stdout: level,type,head_dim,queries,masked,gflops,peak,share,gb_per_s_min,gb_per_s,gb_per_s_max,
 * read_gb_per_s. */
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

enum { REPEATS = 5, N_TILES = 16, PEAK_STEPS = 20000, TILES_PER_CLOCK = 8 };

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

/* ---- peaks: independent chains, more than two instructions a cycle of latency five need ---- */

#define EACH_CHAIN(X) X(0) X(1) X(2) X(3) X(4) X(5) X(6) X(7) X(8) X(9) X(10) X(11) X(12) X(13)
enum { N_CHAINS = 14 };

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
    return 1.0 * PEAK_STEPS * N_CHAINS * 32 / (now_s() - start);
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
    return 1.0 * PEAK_STEPS * N_CHAINS * 16 / (now_s() - start);
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
    return 1.0 * PEAK_STEPS * N_CHAINS * 64 / (now_s() - start);
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
    return 1.0 * PEAK_STEPS * N_CHAINS * 32 / (now_s() - start);
#undef START
#undef STEP
}

static double peak(sl_kv_type type, sl_cpu_level level)
{
    if (level <= SL_CPU_LEVEL_AVXVNNI) /* as many products an instruction, and as many instructions */
        return type == SL_KV_TYPE_F16 ? peak_fma() : peak_int16();
    return type == SL_KV_TYPE_F16 ? peak_fma_512() : peak_int16_512();
}

/* ---- the kernel ---- */

typedef struct workload {
    sl_kernels kernels;
    sl_kv_type type;
    sl_tile_args args;
    uint8_t *tiles; /* [n_tiles], the first N_TILES over and over */
    size_t n_tiles, tile_bytes;
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
        uint8_t *tile = w->tiles + i / SL_TILE * w->tile_bytes;
        if (!sl_kernels_kv_pack(&w->kernels, w->type)(tile, i % SL_TILE, rows[0], rows[1], head_dim))
            exit(1);
    }
    for (size_t i = N_TILES; i < w->n_tiles; i++)
        memcpy(w->tiles + i * w->tile_bytes, w->tiles + i % N_TILES * w->tile_bytes, w->tile_bytes);
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

/* Tiles a second. */
static double kernel_rate(workload *w)
{
    double start = now_s(), spent;
    size_t n = 0;
    do {
        for (size_t end = n + TILES_PER_CLOCK; n < end; n++) {
            w->args.tile = w->tiles + n % w->n_tiles * w->tile_bytes;
            w->args.next = w->tiles + (n + 1) % w->n_tiles * w->tile_bytes;
            sl_kernels_attn_tile(&w->kernels, w->type)(&w->args);
        }
        spent = now_s() - start;
    } while (spent < w->budget_s);
    return (double)n / spent;
}

/* Bytes a second of reading all tiles once, 32 at a time. */
__attribute__((target("avx2"))) static double reading_rate(const workload *w)
{
    __m256i sum[4] = {_mm256_setzero_si256(), _mm256_setzero_si256(), _mm256_setzero_si256(), _mm256_setzero_si256()};
    size_t bytes = w->n_tiles * w->tile_bytes / 128 * 128;
    double start = now_s();
    for (size_t at = 0; at < bytes; at += 128)
        for (size_t i = 0; i < 4; i++) {
            const void *from = w->tiles + at + 32 * i;
            sum[i] = _mm256_xor_si256(sum[i], _mm256_load_si256(from));
            __asm__ volatile("" : "+x"(sum[i]));
        }
    return (double)bytes / (now_s() - start);
}

static double median(double *values)
{
    qsort(values, REPEATS, sizeof *values, by_value);
    return values[REPEATS / 2];
}

static void measure(workload *w, sl_cpu_level level, const uint64_t *masks)
{
    size_t head_dim = w->args.head_dim, n_blocks = (w->args.n_queries + SL_LANES - 1) / SL_LANES;
    double rates[REPEATS], peaks[REPEATS], shares[REPEATS], readings[REPEATS];
    const double operations = 4.0 * (double)(w->args.n_queries * SL_TILE * head_dim), bytes = (double)w->tile_bytes;
    uint8_t *qblocks = aligned_or_exit(n_blocks * sl_qblock_bytes(w->type, head_dim));
    sl_kernels_init(&w->kernels, level);
    w->tiles = aligned_or_exit(w->n_tiles * w->tile_bytes);
    w->args.qblocks = qblocks;
    w->args.state_stride = sl_state_bytes(head_dim);
    w->args.states = aligned_or_exit(n_blocks * w->args.state_stride);
    w->args.scratch = aligned_or_exit(sl_tile_scratch_bytes(w->type, head_dim));
    w->args.masks = masks;
    fill(w);
    for (int i = 0; i < REPEATS; i++) {
        peaks[i] = peak(w->type, level);
        readings[i] = reading_rate(w);
        rates[i] = kernel_rate(w);
        shares[i] = rates[i] * operations / peaks[i];
    }
    double rate = median(rates); /* sorts them */
    printf("%s,%s,%zu,%zu,%d,%.1f,%.1f,%.2f,%.2f,%.2f,%.2f,%.2f\n", sl_cpu_level_name(level),
           w->type == SL_KV_TYPE_F16 ? "f16" : "q8_0", head_dim, w->args.n_queries, masks != NULL,
           rate * operations / 1e9, median(peaks) / 1e9, median(shares), rates[0] * bytes / 1e9, rate * bytes / 1e9,
           rates[REPEATS - 1] * bytes / 1e9, median(readings) / 1e9);
    fflush(stdout);
    free(w->tiles);
    free(qblocks);
    free(w->args.states);
    free(w->args.scratch);
}

int main(int argc, char **argv)
{
    const size_t queries[] = {64, 16, 8, 4, 3, 2, 1}, head_dims[] = {64, 128};
    const sl_cpu_level levels[] = {SL_CPU_LEVEL_AVX2, SL_CPU_LEVEL_AVXVNNI, SL_CPU_LEVEL_AVX512, SL_CPU_LEVEL_AMX};
    enum { N_QUERIES = sizeof queries / sizeof queries[0], N_LEVELS = sizeof levels / sizeof levels[0] };
    enum { N_CASES = N_QUERIES + 1 }; /* the last: a tile cut by the diagonal */
    size_t tiles_bytes = argc > 2 ? (size_t)atoi(argv[2]) << 20 : 0;
    uint64_t diagonal[SL_TILE];
    for (size_t i = 0; i < SL_TILE; i++)
        diagonal[i] = UINT64_MAX >> (63 - i);
    sl_fpenv saved = sl_fpenv_enter();
    puts("level,type,head_dim,queries,masked,gflops,peak,share,gb_per_s_min,gb_per_s,gb_per_s_max,read_gb_per_s");
    for (size_t i = 0; i < N_LEVELS * SL_KV_TYPE_COUNT * 2 * N_CASES; i++) {
        sl_cpu_level level = levels[i / (SL_KV_TYPE_COUNT * 2 * N_CASES)];
        workload w = {.budget_s = argc > 1 ? atof(argv[1]) : 0.05};
        w.type = (sl_kv_type)(i / (2 * N_CASES) % SL_KV_TYPE_COUNT);
        w.args.head_dim = head_dims[i / N_CASES % 2];
        w.args.n_queries = i % N_CASES < N_QUERIES ? queries[i % N_CASES] : SL_TILE;
        w.tile_bytes = sl_tile_bytes(w.type, w.args.head_dim);
        w.n_tiles = tiles_bytes / w.tile_bytes > N_TILES ? tiles_bytes / w.tile_bytes : N_TILES;
        if (sl_cpu_has(level))
            measure(&w, level, i % N_CASES < N_QUERIES ? NULL : diagonal);
    }
    sl_fpenv_leave(saved);
    return 0;
}
#endif
