/* The index behind the n-gram drafter: tokens a second that it takes in, bytes that it takes, time of a lookup, over
 * texts that are hard for such structures, and over a text of ids (binary int32, native order) from a file.
 *
 *   bench_suffix [TOKENS [IDS.bin]]
 *
 * Times are of the processor, not of the clock: the machine may be shared. */
#include <stdio.h>
#include <stdlib.h>
#include <time.h>

#include "decode/suffix.h"

enum { LOOKUPS = 200, NEAR = 64, CUT = 50000 };

static double seconds(void)
{
    struct timespec t;
    clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &t);
    return (double)t.tv_sec + (double)t.tv_nsec * 1e-9;
}

typedef struct text {
    const char *name;
    int32_t (*token)(const int32_t *ids, size_t i, uint32_t random);
} text;

static int32_t any(const int32_t *ids, size_t i, uint32_t random)
{
    (void)ids, (void)i;
    return (int32_t)(random % 50000);
}

/* Few tokens are frequent, most are rare (Zipf). */
static int32_t words(const int32_t *ids, size_t i, uint32_t random)
{
    (void)ids, (void)i;
    return (int32_t)(50000 / (1 + random % 50000));
}

static int32_t one(const int32_t *ids, size_t i, uint32_t random)
{
    (void)ids, (void)i, (void)random;
    return 1;
}

static int32_t two(const int32_t *ids, size_t i, uint32_t random)
{
    (void)ids, (void)random;
    return (int32_t)(i % 2);
}

static int32_t thousand(const int32_t *ids, size_t i, uint32_t random)
{
    (void)ids, (void)random;
    return (int32_t)(i % 1000 * 7919 % 30011);
}

static int32_t fibonacci(const int32_t *ids, size_t i, uint32_t random)
{
    (void)random;
    if (i < 2)
        return (int32_t)i;
    size_t a = 1, b = 2;
    while (i >= b) {
        const size_t next = a + b;
        a = b;
        b = next;
    }
    return ids[i - a];
}

static int32_t thue_morse(const int32_t *ids, size_t i, uint32_t random)
{
    (void)ids, (void)random;
    int32_t odd = 0;
    for (; i; i &= i - 1)
        odd ^= 1;
    return odd;
}

/* An earlier passage again and again, with an error now and then. */
static int32_t copies(const int32_t *ids, size_t i, uint32_t random)
{
    return i < 5000 || random % 400 == 0 ? (int32_t)(random / 400 % 30000) : ids[i - 4999];
}

static int measure(const char *name, const int32_t *ids, size_t n)
{
    sl_budget budget;
    sl_err err = {SL_OK, ""};
    sl_suffix *suffix = NULL;
    sl_suffix_match match = {0, 0}, near[NEAR];
    sl_budget_init(&budget, UINT64_MAX);
    if (sl_suffix_create(n, &budget, &suffix, &err) != SL_OK) {
        fprintf(stderr, "bench_suffix: %s\n", err.text);
        return 1;
    }
    double start = seconds();
    sl_suffix_extend(suffix, ids, n);
    const double build_s = seconds() - start;
    size_t n_near = 0;
    start = seconds();
    for (int i = 0; i < LOOKUPS; i++)
        if (sl_suffix_find(suffix, n - 1, &match))
            n_near += sl_suffix_near(suffix, near, NEAR);
    const double find_s = (seconds() - start) / LOOKUPS;
    const size_t cut = n > CUT ? n - CUT : 0;
    start = seconds();
    sl_suffix_cut(suffix, cut);
    const double cut_s = seconds() - start;
    printf("%s,%zu,%.0f,%.1f,%.2f,%.2f,%zu,%zu,%.0f\n", name, n, (double)n / build_s,
           (double)budget.used_bytes / (double)n, (double)budget.used_bytes * 1e-6, find_s * 1e6, match.length,
           n_near / LOOKUPS, (double)(n - cut) / cut_s);
    fflush(stdout);
    sl_suffix_destroy(suffix);
    sl_budget_deinit(&budget);
    return 0;
}

int main(int argc, char **argv)
{
    static const text texts[] = {
        {"random", any}, {"zipf", words}, {"one token", one}, {"period 2", two}, {"period 1000", thousand},
        {"fibonacci", fibonacci}, {"thue-morse", thue_morse}, {"copies", copies},
    };
    const size_t n = argc > 1 ? strtoull(argv[1], NULL, 10) : 1 << 20;
    int32_t *ids = n > 0 && n <= INT32_MAX ? malloc(n * sizeof *ids) : NULL;
    if (!ids) {
        fprintf(stderr, "bench_suffix: TOKENS is %s, or memory is short\n", argc > 1 ? argv[1] : "");
        return 1;
    }
    int code = 0;
    printf("text,tokens,tokens_per_s,bytes_a_token,MB,lookup_us,match,near,cut_tokens_per_s\n");
    for (size_t t = 0; code == 0 && t < sizeof texts / sizeof texts[0]; t++) {
        uint64_t state = 1;
        for (size_t i = 0; i < n; i++) {
            state = state * UINT64_C(6364136223846793005) + UINT64_C(1442695040888963407);
            ids[i] = texts[t].token(ids, i, (uint32_t)(state >> 33));
        }
        code = measure(texts[t].name, ids, n);
    }
    FILE *file = argc > 2 ? fopen(argv[2], "rb") : NULL;
    const size_t n_file = file ? fread(ids, sizeof *ids, n, file) : 0;
    if (file)
        fclose(file);
    if (code == 0 && n_file > 0)
        code = measure("file", ids, n_file);
    free(ids);
    return code;
}
