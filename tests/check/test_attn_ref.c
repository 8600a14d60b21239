/* The attention reference against binary64: the scalar routines over their whole range, and whole attention against
 * naive softmax on the stored K and V and the query as it was given. The bounds are derived in docs/numerics.md. */
#include "check.h"

#include <math.h>

#include "base/fpenv.h"
#include "kernel/scalar.h"

enum { N_KEYS = 4096, N_QUERIES = 4, N_TILES = N_KEYS / SL_TILE };

/* Every 997th binary32 number of [from, to], both of one sign. */
typedef double (*binary64_fn)(double x);

static double worst_relative(float (*f)(float), binary64_fn exact, float from, float to)
{
    double worst = 0.0;
    uint32_t first = sl_bits_of_float(from), last = sl_bits_of_float(to);
    for (uint64_t bits = first; bits <= last; bits += 997) {
        float x = sl_float_of_bits((uint32_t)bits);
        double want = exact((double)x), error = fabs((double)f(x) - want) / fabs(want);
        worst = error > worst ? error : worst;
    }
    return worst;
}

static void test_exp2(void **state)
{
    (void)state;
    double below = worst_relative(sl_scalar_exp2, exp2, -0x1p-30f, -126.0f);
    double above = worst_relative(sl_scalar_exp2, exp2, 0x1p-30f, 127.0f);
    printf("exp2: largest relative error %.3e below 0, %.3e above\n", below, above);
    assert_true(below < 1.2e-7 && above < 1.2e-7);
    assert_true(sl_scalar_exp2(0.0f) == 1.0f && sl_scalar_exp2(-0.0f) == 1.0f);
    for (int n = -126; n <= 127; n++)
        assert_true((double)sl_scalar_exp2((float)n) == ldexp(1.0, n));
    const float zero[] = {nextafterf(-126.0f, -INFINITY), -200.0f, -3e38f, -INFINITY, NAN, -NAN};
    for (size_t i = 0; i < sizeof zero / sizeof zero[0]; i++)
        assert_int_equal(sl_bits_of_float(sl_scalar_exp2(zero[i])), 0);
}

static void test_tanh(void **state)
{
    (void)state;
    double small = worst_relative(sl_scalar_tanh, tanh, 0x1p-60f, nextafterf(0.125f, 0.0f));
    double large = worst_relative(sl_scalar_tanh, tanh, 0.125f, 3e38f);
    printf("tanh: largest relative error %.3e below 1/8, %.3e from there\n", small, large);
    assert_true(small < 1.3e-7 && large < 1.2e-6);
    for (float y = 0.0f; y < 50.0f; y += 0.0137f)
        assert_true(sl_scalar_tanh(-y) == -sl_scalar_tanh(y));
    assert_true(sl_scalar_tanh(INFINITY) == 1.0f && sl_scalar_tanh(-INFINITY) == -1.0f);
}

/* ---- whole attention ---- */

typedef struct attention {
    size_t head_dim;
    float softcap;
    float *q;         /* [N_QUERIES][D] */
    double *k, *v;    /* [N_KEYS][D] as stored */
    float *rounded;   /* [N_QUERIES][D] the result under test */
    double *expected; /* the same in binary64 */
} attention;

static double element(sl_kv_type type, const uint8_t *tile, size_t head_dim, bool is_v, size_t key, size_t d)
{
    const uint16_t *halves = (const uint16_t *)(const void *)tile;
    const int8_t *bytes = (const int8_t *)tile;
    if (type == SL_KV_TYPE_F16)
        return (double)sl_float_of_half(halves[is_v ? (64 + key) * head_dim + d : d * SL_TILE + key]);
    size_t scale_off = (is_v ? 132 : 64) * head_dim / 2 + d / SL_GROUP * SL_TILE + key;
    int q = bytes[is_v ? 68 * head_dim + d * SL_TILE + key : key * head_dim + d];
    return q * (double)sl_float_of_half(halves[scale_off]);
}

static void attend_naively(const attention *a)
{
    static double p[N_KEYS];
    for (size_t i = 0; i < N_QUERIES; i++) {
        double max = -INFINITY, sum = 0.0;
        for (size_t t = 0; t < N_KEYS; t++) {
            double s = 0.0, cap = (double)a->softcap;
            for (size_t d = 0; d < a->head_dim; d++)
                s += (double)a->q[i * a->head_dim + d] * a->k[t * a->head_dim + d];
            s /= sqrt((double)a->head_dim);
            p[t] = cap > 0.0 ? cap * tanh(s / cap) : s;
            max = p[t] > max ? p[t] : max;
        }
        double *o = a->expected + i * a->head_dim;
        memset(o, 0, a->head_dim * sizeof *o);
        for (size_t t = 0; t < N_KEYS; t++) {
            double weight = exp(p[t] - max);
            sum += weight;
            for (size_t d = 0; d < a->head_dim; d++)
                o[d] += weight * a->v[t * a->head_dim + d];
        }
        for (size_t d = 0; d < a->head_dim; d++)
            o[d] /= sum;
    }
}

/* The keys in two segments, each folded into the total. Fills a->k and a->v with what was stored. */
static void attend_by_kernels(const sl_kernels *kernels, sl_kv_type type, const attention *a, check_rng *rng,
                              check_values values)
{
    size_t D = a->head_dim, state_bytes = sl_state_bytes(D);
    check_buf tile = check_buf_new(sl_tile_bytes(type, D), 64), q = check_buf_new(sl_qblock_bytes(type, D), 64);
    check_buf total = check_buf_new(state_bytes, 64), segment = check_buf_new(state_bytes, 64);
    const float *rows[N_QUERIES];
    float *out[N_QUERIES];
    for (size_t i = 0; i < N_QUERIES; i++) {
        rows[i] = a->q + i * D;
        out[i] = a->rounded + i * D;
    }
    float scale = 1.0f / sqrtf((float)D), c = (float)(1.0 / log(2.0) / sqrt((double)D));
    sl_kernels_attn_qpack(kernels, type)(q.data, rows, N_QUERIES, D, a->softcap > 0.0f ? scale / a->softcap : c);
    for (size_t i = 0; i < state_bytes / sizeof(float); i++)
        ((float *)total.data)[i] = ((float *)segment.data)[i] = i < SL_LANES ? -INFINITY : 0.0f;
    for (size_t n = 0; n < N_TILES; n++) {
        for (size_t key = 0; key < SL_TILE; key++) {
            float k[SL_MAX_HEAD_DIM], v[SL_MAX_HEAD_DIM];
            check_fill(rng, CHECK_VALUES_NORMAL, 0.0f, k, D);
            check_fill(rng, values, 0.0f, v, D);
            assert_true(sl_kernels_kv_pack(kernels, type)(tile.data, key, k, v, D));
            for (size_t d = 0; d < D; d++) {
                a->k[(n * SL_TILE + key) * D + d] = element(type, tile.data, D, false, key, d);
                a->v[(n * SL_TILE + key) * D + d] = element(type, tile.data, D, true, key, d);
            }
        }
        sl_tile_args args = {.tile = tile.data,
                             .head_dim = D,
                             .qblocks = q.data,
                             .states = segment.data,
                             .state_stride = state_bytes,
                             .n_queries = N_QUERIES,
                             .softcap = a->softcap};
        sl_kernels_attn_tile(kernels, type)(&args);
        if (n + 1 == N_TILES / 2 || n + 1 == N_TILES)
            kernels->attn_segfold(total.data, segment.data, state_bytes, 1, D);
    }
    kernels->attn_finish(total.data, out, N_QUERIES, D);
    check_buf *all[] = {&tile, &q, &total, &segment};
    for (size_t i = 0; i < sizeof all / sizeof all[0]; i++)
        check_buf_free(all[i]);
}

static double relative_rms(sl_kv_type type, size_t head_dim, float softcap, check_values values)
{
    size_t n_kv = N_KEYS * head_dim, n_q = N_QUERIES * head_dim;
    attention a = {.head_dim = head_dim, .softcap = softcap};
    a.k = malloc(2 * n_kv * sizeof(double));
    a.q = malloc(2 * n_q * sizeof(float));
    a.expected = malloc(n_q * sizeof(double));
    assert_true(a.k && a.q && a.expected);
    a.v = a.k + n_kv;
    a.rounded = a.q + n_q;
    check_rng rng = {check_seed() + head_dim + (uint64_t)type};
    check_fill(&rng, CHECK_VALUES_NORMAL, 0.0f, a.q, n_q);
    sl_kernels kernels;
    sl_kernels_init(&kernels, SL_CPU_LEVEL_REF);
    attend_by_kernels(&kernels, type, &a, &rng, values);
    attend_naively(&a);
    double error = 0.0, size = 0.0;
    for (size_t i = 0; i < n_q; i++) {
        double difference = (double)a.rounded[i] - a.expected[i];
        error += difference * difference;
        size += a.expected[i] * a.expected[i];
    }
    free(a.k);
    free(a.q);
    free(a.expected);
    double result = sqrt(error / size);
    printf("%s, D %zu, softcap %g, values %d: relative rms error %.3e\n", type == SL_KV_TYPE_F16 ? "F16" : "Q8_0",
           head_dim, (double)softcap, (int)values, result);
    return result;
}

static void test_f16(void **state)
{
    (void)state;
    const size_t head_dims[] = {64, 80, 128};
    for (size_t i = 0; i < sizeof head_dims / sizeof head_dims[0]; i++)
        assert_true(relative_rms(SL_KV_TYPE_F16, head_dims[i], 0.0f, CHECK_VALUES_NORMAL) < 3e-6);
    assert_true(relative_rms(SL_KV_TYPE_F16, 64, 20.0f, CHECK_VALUES_NORMAL) < 3e-6);
    assert_true(relative_rms(SL_KV_TYPE_F16, 64, 0.0f, CHECK_VALUES_OUTLIER) < 3e-6);
}

static void test_q8(void **state)
{
    (void)state;
    const size_t head_dims[] = {32, 64, 128};
    for (size_t i = 0; i < sizeof head_dims / sizeof head_dims[0]; i++)
        assert_true(relative_rms(SL_KV_TYPE_Q8_0, head_dims[i], 0.0f, CHECK_VALUES_NORMAL) < 1.2e-4);
    assert_true(relative_rms(SL_KV_TYPE_Q8_0, 64, 20.0f, CHECK_VALUES_NORMAL) < 1.2e-4);
    assert_true(relative_rms(SL_KV_TYPE_Q8_0, 64, 0.0f, CHECK_VALUES_OUTLIER) < 3e-4);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_exp2), cmocka_unit_test(test_tanh),
                                       cmocka_unit_test(test_f16), cmocka_unit_test(test_q8)};
    sl_fpenv saved = sl_fpenv_enter();
    int failed = cmocka_run_group_tests_name("attn_ref", tests, NULL, NULL);
    sl_fpenv_leave(saved);
    return failed;
}
