/* The peaks' loops on x86-64. An empty asm makes a register's value unknown, so that each product is computed. */
#include "bench/peaks.h"

#if defined(__x86_64__)
#include "kernel/amx.h"

static volatile int sink;

#define EACH_CHAIN(X) X(0) X(1) X(2) X(3) X(4) X(5) X(6) X(7) X(8) X(9) X(10) X(11)
enum { N_CHAINS = 12 };

#define LOOP(name, isa, start, step, end)                                                                              \
    __attribute__((target(isa))) static void name(size_t steps)                                                        \
    {                                                                                                                  \
        start for (size_t i = 0; i < steps; i++)                                                                       \
        {                                                                                                              \
            EACH_CHAIN(step)                                                                                           \
        }                                                                                                              \
        EACH_CHAIN(end)                                                                                                \
    }

#define UNKNOWN256(v) __asm__ volatile("" : "+x"(v))
#define UNKNOWN512(v) __asm__ volatile("" : "+v"(v))

#define CHAIN_PS256(i) __m256 c##i = _mm256_set1_ps((float)i);
#define CHAIN_I256(i) __m256i c##i = _mm256_set1_epi32(i);
#define CHAIN_PS512(i) __m512 c##i = _mm512_set1_ps((float)i);
#define CHAIN_I512(i) __m512i c##i = _mm512_set1_epi32(i);
#define KEEP256(i) UNKNOWN256(c##i);
#define KEEP512(i) UNKNOWN512(c##i);

#define FMA256(i) c##i = _mm256_fmadd_ps(a, b, c##i); UNKNOWN256(c##i);
LOOP(fma_avx2, "avx2,fma", __m256 a = _mm256_set1_ps(0.5f); __m256 b = a; EACH_CHAIN(CHAIN_PS256), FMA256, KEEP256)

#define INT16_AVX2(i) UNKNOWN256(a); c##i = _mm256_add_epi32(c##i, _mm256_madd_epi16(a, b));
LOOP(int16_avx2, "avx2", __m256i a = _mm256_set1_epi16((short)sink); __m256i b = a; EACH_CHAIN(CHAIN_I256),
     INT16_AVX2, KEEP256)

#define INT8_AVX2(i)                                                                                                   \
    UNKNOWN256(a);                                                                                                     \
    c##i = _mm256_add_epi32(c##i, _mm256_madd_epi16(_mm256_maddubs_epi16(a, b), ones));
LOOP(int8_avx2, "avx2", __m256i a = _mm256_set1_epi8((char)sink); __m256i b = a;
     __m256i ones = _mm256_set1_epi16(1); EACH_CHAIN(CHAIN_I256), INT8_AVX2, KEEP256)

#define INT16_AVXVNNI(i) c##i = _mm256_dpwssd_avx_epi32(c##i, a, b); UNKNOWN256(c##i);
LOOP(int16_avxvnni, "avx2,avxvnni", __m256i a = _mm256_set1_epi16((short)sink); __m256i b = a; EACH_CHAIN(CHAIN_I256),
     INT16_AVXVNNI, KEEP256)

#define INT8_AVXVNNI(i) c##i = _mm256_dpbusd_avx_epi32(c##i, a, b); UNKNOWN256(c##i);
LOOP(int8_avxvnni, "avx2,avxvnni", __m256i a = _mm256_set1_epi8((char)sink); __m256i b = a; EACH_CHAIN(CHAIN_I256),
     INT8_AVXVNNI, KEEP256)

#define FMA512(i) c##i = _mm512_fmadd_ps(a, b, c##i); UNKNOWN512(c##i);
LOOP(fma_avx512, "avx512f", __m512 a = _mm512_set1_ps(0.5f); __m512 b = a; EACH_CHAIN(CHAIN_PS512), FMA512, KEEP512)

#define INT16_AVX512(i) c##i = _mm512_dpwssd_epi32(c##i, a, b); UNKNOWN512(c##i);
LOOP(int16_avx512, "avx512f,avx512bw,avx512vnni", __m512i a = _mm512_set1_epi16((short)sink); __m512i b = a;
     EACH_CHAIN(CHAIN_I512), INT16_AVX512, KEEP512)

#define INT8_AVX512(i) c##i = _mm512_dpbusd_epi32(c##i, a, b); UNKNOWN512(c##i);
LOOP(int8_avx512, "avx512f,avx512bw,avx512vnni", __m512i a = _mm512_set1_epi8((char)sink); __m512i b = a;
     EACH_CHAIN(CHAIN_I512), INT8_AVX512, KEEP512)

/* Two by two blocks of tiles: each operand is used twice, as a product of matrices uses it. */
AMX static void matrix_amx(size_t steps)
{
    amx_config config = {.palette = AMX_PALETTE};
    for (int tile = 0; tile < AMX_TILES; tile++) {
        config.rows[tile] = AMX_ROWS;
        config.row_bytes[tile] = AMX_ROW_BYTES;
    }
    amx_configure(&config);
    AMX_ZERO(0);
    AMX_ZERO(1);
    AMX_ZERO(2);
    AMX_ZERO(3);
    AMX_ZERO(4);
    AMX_ZERO(5);
    AMX_ZERO(6);
    AMX_ZERO(7);
    for (size_t i = 0; i < steps; i++) {
        AMX_DOT_SS(0, 4, 6);
        AMX_DOT_SS(1, 4, 7);
        AMX_DOT_SS(2, 5, 6);
        AMX_DOT_SS(3, 5, 7);
    }
    amx_release();
}

static const bench_loop loops[][BENCH_PEAK_MATRIX + 1] = {
    {{fma_avx2, N_CHAINS * 16}, {int16_avx2, N_CHAINS * 32}, {int8_avx2, N_CHAINS * 64}, {NULL, 0}},
    {{fma_avx2, N_CHAINS * 16}, {int16_avxvnni, N_CHAINS * 32}, {int8_avxvnni, N_CHAINS * 64}, {NULL, 0}},
    {{fma_avx512, N_CHAINS * 32}, {int16_avx512, N_CHAINS * 64}, {int8_avx512, N_CHAINS * 128}, {NULL, 0}},
    {{fma_avx512, N_CHAINS * 32},
     {int16_avx512, N_CHAINS * 64},
     {int8_avx512, N_CHAINS * 128},
     {matrix_amx, 4.0 * 2 * AMX_ROWS * AMX_ROWS * AMX_ROW_BYTES}},
};

bench_loop bench_loop_find(sl_cpu_level level, bench_peak peak)
{
    /* The reference's peaks are those of the plainest vectors, where the processor has them. */
    if (level == SL_CPU_LEVEL_REF && sl_cpu_has(SL_CPU_LEVEL_AVX2))
        level = SL_CPU_LEVEL_AVX2;
    if (level < SL_CPU_LEVEL_AVX2 || level > SL_CPU_LEVEL_AMX || peak > BENCH_PEAK_MATRIX)
        return (bench_loop){NULL, 0};
    return loops[level - SL_CPU_LEVEL_AVX2][peak];
}

__attribute__((target("avx2"))) static uint64_t read_avx2(const void *at, size_t bytes)
{
    const __m256i *v = at;
    __m256i sum[8];
    for (size_t i = 0; i < 8; i++)
        sum[i] = _mm256_setzero_si256();
    for (size_t i = 0; i < bytes / sizeof *v; i += 8)
        for (size_t j = 0; j < 8; j++)
            sum[j] = _mm256_add_epi64(sum[j], _mm256_load_si256(&v[i + j]));
    for (size_t i = 1; i < 8; i++)
        sum[0] = _mm256_xor_si256(sum[0], sum[i]);
    return (uint64_t)_mm256_extract_epi64(sum[0], 0) ^ (uint64_t)_mm256_extract_epi64(sum[0], 3);
}

__attribute__((target("avx512f"))) static uint64_t read_avx512(const void *at, size_t bytes)
{
    const __m512i *v = at;
    __m512i sum[4];
    for (size_t i = 0; i < 4; i++)
        sum[i] = _mm512_setzero_si512();
    for (size_t i = 0; i < bytes / sizeof *v; i += 4)
        for (size_t j = 0; j < 4; j++)
            sum[j] = _mm512_add_epi64(sum[j], _mm512_load_si512(&v[i + j]));
    return (uint64_t)_mm512_reduce_add_epi64(
        _mm512_xor_si512(_mm512_xor_si512(sum[0], sum[1]), _mm512_xor_si512(sum[2], sum[3])));
}

static uint64_t read_plain(const void *at, size_t bytes)
{
    const uint64_t *words = at;
    uint64_t sum[8] = {0};
    for (size_t i = 0; i < bytes / sizeof *words; i += 8)
        for (size_t j = 0; j < 8; j++)
            sum[j] += words[i + j];
    return sum[0] ^ sum[1] ^ sum[2] ^ sum[3] ^ sum[4] ^ sum[5] ^ sum[6] ^ sum[7];
}

bench_reader bench_reader_find(sl_cpu_level level)
{
    if (level >= SL_CPU_LEVEL_AVX512 && level <= SL_CPU_LEVEL_AMX)
        return read_avx512;
    return sl_cpu_has(SL_CPU_LEVEL_AVX2) ? read_avx2 : read_plain;
}
#endif
