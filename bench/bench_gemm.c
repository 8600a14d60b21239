/* Rate of each projection kernel beside what the same core can do: the int8 dot peak of the level (of avx512 for amx,
 * too), measured in turn with the kernel, and the bandwidth of reading memory. One thread. Times are the thread's
 * processor time, so that other programs on the machine count less; gops and share are medians of five.
 * AVX2's peak is that of vpmaddubsw, vpmaddwd and vpaddd, exact for any bytes; weights of four or five bits need fewer
 * instructions and may pass it.
 * Usage: bench_gemm [seconds per figure [n_out n_in rows [type]]]. CSV on stdout:
 * level,type,n_out,n_in,rows,gops,peak_gops,share,gbps. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "base/fpenv.h"
#include "base/half.h"
#include "kernel/kernel.h"

#if defined(__x86_64__)
#include <immintrin.h>
#endif

enum { REPEATS = 5, MEMORY_BYTES = 256 << 20, AHEAD_BYTES = 2048 };

static double now_s(void)
{
    struct timespec t;
    clock_gettime(CLOCK_THREAD_CPUTIME_ID, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

static double median(double values[REPEATS])
{
    for (int i = 1; i < REPEATS; i++)
        for (int j = i; j > 0 && values[j] < values[j - 1]; j--) {
            double swap = values[j];
            values[j] = values[j - 1];
            values[j - 1] = swap;
        }
    return values[REPEATS / 2];
}

typedef void (*work_fn)(void *arg);

/* Seconds of one call, averaged over `budget_s`. */
static double call_s(work_fn work, void *arg, double budget_s)
{
    size_t n = 0;
    double start = now_s(), spent;
    do {
        work(arg);
        n++;
        spent = now_s() - start;
    } while (spent < budget_s);
    return spent / (double)n;
}

static volatile uint32_t sink;

/* Operations (multiply and add are two) of one call of the peak loop. */
#if defined(__x86_64__)
enum { PEAK_STEPS = 100000 };

__attribute__((target("avx2"))) static void peak_avx2(void *arg)
{
    (void)arg;
    const __m256i ones = _mm256_set1_epi16(1);
    __m256i w = _mm256_set1_epi8((char)sink), q = _mm256_set1_epi8((char)(sink + 1));
    __m256i acc[8];
    for (int i = 0; i < 8; i++)
        acc[i] = w;
    for (int step = 0; step < PEAK_STEPS; step++)
        for (int i = 0; i < 8; i++) {
            __m256i product = _mm256_maddubs_epi16(w, q);
            __asm__ volatile("" : "+x"(product)); /* else it is computed once */
            acc[i] = _mm256_add_epi32(acc[i], _mm256_madd_epi16(product, ones));
        }
    for (int i = 1; i < 8; i++)
        acc[0] = _mm256_add_epi32(acc[0], acc[i]);
    sink = (uint32_t)_mm256_extract_epi32(acc[0], 0);
}

__attribute__((target("avx2,avxvnni"))) static void peak_avxvnni(void *arg)
{
    (void)arg;
    __m256i w = _mm256_set1_epi32((int)sink), q = _mm256_set1_epi32((int)sink + 1);
    __m256i acc[12];
    for (int i = 0; i < 12; i++)
        acc[i] = w;
    for (int step = 0; step < PEAK_STEPS; step++)
        for (int i = 0; i < 12; i++)
            acc[i] = _mm256_dpbusd_avx_epi32(acc[i], w, q);
    for (int i = 1; i < 12; i++)
        acc[0] = _mm256_add_epi32(acc[0], acc[i]);
    sink = (uint32_t)_mm256_extract_epi32(acc[0], 0);
}

__attribute__((target("avx512f,avx512bw,avx512vnni"))) static void peak_avx512(void *arg)
{
    (void)arg;
    __m512i w = _mm512_set1_epi32((int)sink), q = _mm512_set1_epi32((int)sink + 1);
    __m512i acc[12];
    for (int i = 0; i < 12; i++)
        acc[i] = w;
    for (int step = 0; step < PEAK_STEPS; step++)
        for (int i = 0; i < 12; i++)
            acc[i] = _mm512_dpbusd_epi32(acc[i], w, q);
    for (int i = 1; i < 12; i++)
        acc[0] = _mm512_add_epi32(acc[0], acc[i]);
    sink = (uint32_t)_mm512_reduce_add_epi32(acc[0]);
}

static double peak_gops(sl_cpu_level level, double budget_s)
{
    if (level == SL_CPU_LEVEL_AVX2)
        return 2.0 * 32 * 8 * PEAK_STEPS / call_s(peak_avx2, NULL, budget_s) * 1e-9;
    if (level == SL_CPU_LEVEL_AVXVNNI)
        return 2.0 * 32 * 12 * PEAK_STEPS / call_s(peak_avxvnni, NULL, budget_s) * 1e-9;
    if (level >= SL_CPU_LEVEL_AVX512)
        return 2.0 * 64 * 12 * PEAK_STEPS / call_s(peak_avx512, NULL, budget_s) * 1e-9;
    return 0.0;
}
#else
static double peak_gops(sl_cpu_level level, double budget_s)
{
    (void)level;
    (void)budget_s;
    return 0.0;
}
#endif

static void read_memory(void *arg)
{
    const uint64_t *words = arg;
    uint64_t sum[8] = {0};
    for (size_t i = 0; i < MEMORY_BYTES / sizeof *words; i += 8) {
        __builtin_prefetch((const void *)((uintptr_t)(words + i) + AHEAD_BYTES)); /* as the kernels do */
        for (size_t j = 0; j < 8; j++)
            sum[j] += words[i + j];
    }
    sink = (uint32_t)(sum[0] ^ sum[1] ^ sum[2] ^ sum[3] ^ sum[4] ^ sum[5] ^ sum[6] ^ sum[7]);
}

typedef struct gemm_call {
    sl_gemm_fn gemm;
    sl_gemm_args args;
} gemm_call;

static void run_gemm(void *arg)
{
    const gemm_call *call = arg;
    call->gemm(&call->args);
}

/* Packed weights: random values, and every scale a plain number (0x2c00 is 1/16 in binary16). */
static void fill_packed(uint8_t *packed, sl_wtype type, size_t n_out, size_t n_in)
{
    size_t bytes = n_out * sl_wtype_row_bytes(type, n_in);
    bool quantised = sl_wtype_is_quantised(type);
    for (size_t i = 0; i < bytes; i++)
        packed[i] = quantised ? (uint8_t)(i * 2654435761u >> 13) : (uint8_t)(i & 1 ? 0x2c : 0);
    size_t group = quantised ? sl_wtype_row_bytes(type, sl_wtype_block_elems(type)) * SL_PANEL : bytes;
    size_t scales = (sl_wtype_has_minimum(type) ? 4 : 2) * SL_PANEL;
    for (size_t g = 0; quantised && g < bytes; g += group)
        for (size_t i = 0; i < scales; i++)
            packed[g + group - scales + i] = i & 1 ? 0x2c : 0;
}

/* `only`: one type's name, or NULL. */
static int measure(const sl_kernels *kernels, sl_cpu_level level, const size_t shape[3], double budget_s,
                   const char *only)
{
    size_t n_out = shape[0], n_in = shape[1], n_rows = shape[2];
    float *x = malloc(n_rows * n_in * sizeof *x);
    float *out = malloc(n_rows * n_out * sizeof *out);
    uint8_t *qrows = aligned_alloc(64, n_rows * sl_qrow_bytes(n_in));
    if (!x || !out || !qrows)
        return 1;
    for (size_t i = 0; i < n_rows * n_in; i++)
        x[i] = (float)((i * 2654435761u >> 7) % 1000) * 0.002f - 1.0f;
    kernels->qrow(qrows, x, n_in, n_rows, n_in);
    for (int type = 0; type < SL_WTYPE_COUNT; type++) {
        if (n_in % sl_wtype_block_elems((sl_wtype)type) != 0)
            continue;
        if (only && strcmp(only, sl_wtype_name((sl_wtype)type)) != 0)
            continue;
        uint8_t *packed = malloc(n_out * sl_wtype_row_bytes((sl_wtype)type, n_in));
        if (!packed)
            return 1;
        fill_packed(packed, (sl_wtype)type, n_out, n_in);
        gemm_call call = {sl_kernels_gemm(kernels, (sl_wtype)type),
                          {.packed = packed, .n_out = n_out, .n_in = n_in, .n = n_out, .qrows = qrows, .x = x,
                           .x_stride = n_in, .n_rows = n_rows, .out = out, .out_stride = n_out}};
        double operations = 2e-9 * (double)n_out * (double)n_in * (double)n_rows;
        double gops[REPEATS], peaks[REPEATS], shares[REPEATS];
        for (int i = 0; i < REPEATS; i++) {
            peaks[i] = peak_gops(level, budget_s / REPEATS / 4);
            gops[i] = operations / call_s(run_gemm, &call, budget_s / REPEATS);
            shares[i] = peaks[i] > 0 ? gops[i] / peaks[i] : 0.0;
        }
        double bytes = (double)n_out * (double)sl_wtype_row_bytes((sl_wtype)type, n_in);
        double rate = median(gops);
        printf("%s,%s,%zu,%zu,%zu,%.1f,%.1f,%.3f,%.2f\n", sl_cpu_level_name(level), sl_wtype_name((sl_wtype)type),
               n_out, n_in, n_rows, rate, median(peaks), median(shares), bytes * rate / operations * 1e-9);
        fflush(stdout);
        free(packed);
    }
    free(x);
    free(out);
    free(qrows);
    return 0;
}

int main(int argc, char **argv)
{
    double budget_s = argc > 1 ? strtod(argv[1], NULL) : 0.2;
    sl_cpu_level level;
    sl_err err;
    if (sl_cpu_find(getenv("SLUICE_CPU"), &level, &err) != SL_OK) {
        fprintf(stderr, "bench_gemm: %s\n", err.text);
        return 1;
    }
    sl_kernels kernels;
    sl_kernels_init(&kernels, level);
    sl_fpenv_enter();
    void *memory = malloc(MEMORY_BYTES);
    if (!memory)
        return 1;
    memset(memory, 1, MEMORY_BYTES);
    printf("# memory read %.2f GB/s, one thread\n", MEMORY_BYTES / call_s(read_memory, memory, 0.3) * 1e-9);
    free(memory);
    printf("level,type,n_out,n_in,rows,gops,peak_gops,share,gbps\n");
    if (argc > 4) {
        size_t shape[3];
        for (int i = 0; i < 3; i++)
            shape[i] = strtoul(argv[2 + i], NULL, 10);
        return measure(&kernels, level, shape, budget_s, argc > 5 ? argv[5] : NULL);
    }
    static const size_t matrices[][2] = {{576, 576}, {1536, 576}, {576, 1536}, {49152, 576}};
    static const size_t rows[] = {1, 2, 4, 8, 16, 64};
    for (size_t m = 0; m < sizeof matrices / sizeof *matrices; m++)
        for (size_t r = 0; r < sizeof rows / sizeof *rows; r++)
            if (measure(&kernels, level, (const size_t[3]){matrices[m][0], matrices[m][1], rows[r]}, budget_s, NULL))
                return 1;
    return 0;
}
