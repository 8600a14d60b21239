/* Quantised rows, norms, RoPE and element-wise functions: every entry at every level the processor has against the
 * reference, bit for bit. */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include "base/fpenv.h"
#include "check/check_gemm.h"
#include "kernel/kernel.h"
#include "kernel/ref.h"

/* Buffers of one comparison: two inputs, one output each for reference and subject. */
typedef struct trial {
    const sl_kernels *kernels;
    cg_buf a, b, want, got;
    size_t n;
} trial;

typedef void (*compare_fn)(trial *at, cg_mode mode);

static void same(const trial *at, const char *what)
{
    size_t n = at->want.size / sizeof(float);
    size_t i = cg_differ(cg_floats(&at->want), cg_floats(&at->got), n);
    if (i < n)
        fail_msg("%s n %zu: element %zu is %a, not %a", what, at->n, i, (double)cg_floats(&at->got)[i],
                 (double)cg_floats(&at->want)[i]);
}

static void compare_rmsnorm(trial *at, cg_mode mode)
{
    (void)mode;
    sl_rmsnorm_ref(cg_floats(&at->want), cg_floats(&at->a), cg_floats(&at->b), at->n, 1e-5f);
    at->kernels->rmsnorm(cg_floats(&at->got), cg_floats(&at->a), cg_floats(&at->b), at->n, 1e-5f);
    same(at, "rmsnorm");
    memcpy(at->got.data, at->a.data, at->a.size); /* in place */
    at->kernels->rmsnorm(cg_floats(&at->got), cg_floats(&at->got), cg_floats(&at->b), at->n, 1e-5f);
    same(at, "rmsnorm in place");
}

static void compare_rope(trial *at, cg_mode mode)
{
    (void)mode;
    size_t n_pairs = at->n / 2;
    cg_buf tables[2] = {cg_alloc(n_pairs * sizeof(float)), cg_alloc(n_pairs * sizeof(float))};
    for (size_t t = 0; t < 2; t++)
        cg_fill(cg_floats(&tables[t]), n_pairs, CG_MODE_NORMAL);
    memcpy(at->want.data, at->a.data, at->a.size);
    memcpy(at->got.data, at->a.data, at->a.size);
    sl_rope_norm_ref(cg_floats(&at->want), cg_floats(&tables[0]), cg_floats(&tables[1]), n_pairs);
    at->kernels->rope_norm(cg_floats(&at->got), cg_floats(&tables[0]), cg_floats(&tables[1]), n_pairs);
    cg_free(&tables[0]);
    cg_free(&tables[1]);
    same(at, "rope_norm");
}

static void compare_neox(trial *at, cg_mode mode)
{
    (void)mode;
    size_t n_pairs = at->n / 2;
    cg_buf tables[2] = {cg_alloc(n_pairs * sizeof(float)), cg_alloc(n_pairs * sizeof(float))};
    for (size_t t = 0; t < 2; t++)
        cg_fill(cg_floats(&tables[t]), n_pairs, CG_MODE_NORMAL);
    memcpy(at->want.data, at->a.data, at->a.size);
    memcpy(at->got.data, at->a.data, at->a.size);
    sl_rope_neox_ref(cg_floats(&at->want), cg_floats(&tables[0]), cg_floats(&tables[1]), n_pairs);
    at->kernels->rope_neox(cg_floats(&at->got), cg_floats(&tables[0]), cg_floats(&tables[1]), n_pairs);
    cg_free(&tables[0]);
    cg_free(&tables[1]);
    same(at, "rope_neox");
}

static void compare_gelu(trial *at, cg_mode mode)
{
    for (size_t i = 0; mode == CG_MODE_NORMAL && i < at->n; i++)
        cg_floats(&at->a)[i] *= 6.0f; /* both ends of the tanh */
    sl_gelu_mul_ref(cg_floats(&at->want), cg_floats(&at->a), cg_floats(&at->b), at->n);
    at->kernels->gelu_mul(cg_floats(&at->got), cg_floats(&at->a), cg_floats(&at->b), at->n);
    same(at, "gelu_mul");
    memcpy(at->got.data, at->a.data, at->a.size);
    at->kernels->gelu_mul(cg_floats(&at->got), cg_floats(&at->got), cg_floats(&at->b), at->n);
    same(at, "gelu_mul in place");
}

static void compare_softcap(trial *at, cg_mode mode)
{
    const float cap = 0.5f + (float)cg_below(100) * 0.7f;
    for (size_t i = 0; mode == CG_MODE_NORMAL && i < at->n; i++)
        cg_floats(&at->a)[i] *= 20.0f;
    memcpy(at->want.data, at->a.data, at->a.size);
    memcpy(at->got.data, at->a.data, at->a.size);
    sl_softcap_ref(cg_floats(&at->want), at->n, cap);
    at->kernels->softcap(cg_floats(&at->got), at->n, cap);
    same(at, "softcap");
}

static void compare_silu(trial *at, cg_mode mode)
{
    for (size_t i = 0; mode == CG_MODE_NORMAL && i < at->n; i++)
        cg_floats(&at->a)[i] *= 60.0f; /* both ends of the exponential */
    sl_silu_mul_ref(cg_floats(&at->want), cg_floats(&at->a), cg_floats(&at->b), at->n);
    at->kernels->silu_mul(cg_floats(&at->got), cg_floats(&at->a), cg_floats(&at->b), at->n);
    same(at, "silu_mul");
    memcpy(at->got.data, at->a.data, at->a.size);
    at->kernels->silu_mul(cg_floats(&at->got), cg_floats(&at->got), cg_floats(&at->b), at->n);
    same(at, "silu_mul in place");
}

static void compare_add(trial *at, cg_mode mode)
{
    (void)mode;
    memcpy(at->want.data, at->a.data, at->a.size);
    memcpy(at->got.data, at->a.data, at->a.size);
    sl_add_ref(cg_floats(&at->want), cg_floats(&at->b), at->n);
    at->kernels->add(cg_floats(&at->got), cg_floats(&at->b), at->n);
    same(at, "add");
}

/* Arguments up to 127: the contract of exp2. */
static void exp2_arguments(float *x, size_t n, cg_mode mode)
{
    for (size_t i = 0; i < n; i++) {
        if (mode == CG_MODE_NORMAL)
            x[i] *= 70.0f;
        if (mode == CG_MODE_EXTREME)
            x[i] = x[i] > 0 ? 127.0f : -126.0f - (float)cg_below(3) * 0x1p-17f;
        x[i] = x[i] > 127.0f ? 127.0f : x[i];
    }
}

static void compare_exp2(trial *at, cg_mode mode)
{
    exp2_arguments(cg_floats(&at->a), at->n, mode);
    sl_exp2_ref(cg_floats(&at->want), cg_floats(&at->a), at->n);
    at->kernels->exp2(cg_floats(&at->got), cg_floats(&at->a), at->n);
    same(at, "exp2");
    memcpy(at->got.data, at->a.data, at->a.size);
    at->kernels->exp2(cg_floats(&at->got), cg_floats(&at->got), at->n);
    same(at, "exp2 in place");
}

static void compare_sumexp(trial *at, cg_mode mode)
{
    exp2_arguments(cg_floats(&at->a), at->n, mode);
    float max = cg_floats(&at->a)[sl_argmax_ref(cg_floats(&at->a), at->n)];
    max = max == max ? max : 1.0f;
    for (size_t i = 0; i < at->n; i++) /* where the first was a NaN, argmax is not the maximum */
        max = cg_floats(&at->a)[i] > max ? cg_floats(&at->a)[i] : max;
    cg_floats(&at->want)[0] = sl_sumexp_ref(cg_floats(&at->a), at->n, max);
    cg_floats(&at->got)[0] = at->kernels->sumexp(cg_floats(&at->a), at->n, max);
    same(at, "sumexp");
}

static void compare_argmax(trial *at, cg_mode mode)
{
    float *x = cg_floats(&at->a);
    for (size_t i = 0; i < at->n; i++)
        x[i] = x[i] == x[i] ? x[i] : (float)-INFINITY; /* NaN absent */
    size_t want = sl_argmax_ref(x, at->n), got = at->kernels->argmax(x, at->n);
    if (want != got)
        fail_msg("argmax n %zu mode %d: %zu, not %zu", at->n, (int)mode, got, want);
    for (size_t i = 0; i < at->n; i++)
        x[i] = cg_below(2) ? -0.0f : 0.0f; /* equal: the lowest wins */
    assert_int_equal(at->kernels->argmax(x, at->n), 0);
    x[cg_below(at->n)] = 1.0f;
    x[cg_below(at->n)] = 1.0f;
    assert_int_equal(at->kernels->argmax(x, at->n), sl_argmax_ref(x, at->n));
    for (size_t i = 0; i < at->n; i++)
        x[i] = (float)-INFINITY;
    assert_int_equal(at->kernels->argmax(x, at->n), 0);
    for (size_t i = 0; i < at->n; i++)
        x[i] = (float)NAN; /* outside the contract: still an index */
    assert_true(at->kernels->argmax(x, at->n) < at->n);
}

static void compare_finite(trial *at, cg_mode mode)
{
    float *x = cg_floats(&at->a);
    assert_int_equal(at->kernels->finite(x, at->n), sl_finite_ref(x, at->n));
    cg_fill(x, at->n, mode == CG_MODE_SPECIAL ? CG_MODE_WIDE : mode);
    assert_true(at->kernels->finite(x, at->n));
    static const float bad[] = {(float)INFINITY, (float)-INFINITY, (float)NAN};
    x[cg_below(at->n)] = bad[cg_below(3)];
    assert_false(at->kernels->finite(x, at->n));
}

/* Scales and sums as numbers, values as bytes. */
static void compare_qrow(trial *at, cg_mode mode)
{
    (void)mode;
    size_t n = at->n / SL_GROUP * SL_GROUP, n_rows = 1 + cg_below(3), stride = n + cg_below(3);
    if (n == 0)
        return;
    cg_buf x = cg_alloc(((n_rows - 1) * stride + n) * sizeof(float));
    cg_buf want = cg_alloc(n_rows * sl_qrow_bytes(n)), got = cg_alloc(want.size);
    cg_fill(cg_floats(&x), x.size / sizeof(float), mode);
    cg_prefill(&want);
    cg_prefill(&got);
    sl_qrow_ref(want.data, cg_floats(&x), stride, n_rows, n);
    at->kernels->qrow(got.data, cg_floats(&x), stride, n_rows, n);
    for (size_t r = 0; r < n_rows; r++) {
        size_t off = r * sl_qrow_bytes(n), n_floats = sl_qrow_q_off(n) / sizeof(float);
        const float *a = (const float *)(const void *)(want.data + off);
        const float *b = (const float *)(const void *)(got.data + off);
        if (cg_differ(a, b, n_floats) < n_floats)
            fail_msg("qrow n %zu row %zu: scale or sum %zu", n, r, cg_differ(a, b, n_floats));
        assert_memory_equal(want.data + off + sl_qrow_q_off(n), got.data + off + sl_qrow_q_off(n), n);
        for (size_t k = 0; k < n; k++)
            assert_int_not_equal((int8_t)got.data[off + sl_qrow_q_off(n) + k], -128);
    }
    cg_free(&x);
    cg_free(&want);
    cg_free(&got);
}

static void compare_once(const sl_kernels *kernels, compare_fn compare, size_t n, cg_mode mode)
{
    trial at = {kernels, cg_alloc(n * 4), cg_alloc(n * 4), cg_alloc(n * 4), cg_alloc(n * 4), n};
    cg_fill(cg_floats(&at.a), n, mode);
    cg_fill(cg_floats(&at.b), n, mode);
    cg_prefill(&at.want);
    cg_prefill(&at.got);
    compare(&at, mode);
    cg_free(&at.a);
    cg_free(&at.b);
    cg_free(&at.want);
    cg_free(&at.got);
}

typedef struct subject {
    size_t entry;
    compare_fn compare;
    sl_cpu_level level;
} subject;

static void check_entry(void **state)
{
    const subject *who = *state;
    if (!sl_cpu_has(who->level))
        skip();
    sl_kernels kernels;
    sl_kernels_init(&kernels, who->level);
    assert_int_equal(kernels.level[who->entry], who->level);
    static const size_t lengths[] = {576, 1536, 4096, 49152};
    sl_fpenv saved = sl_fpenv_enter();
    for (int mode = 0; mode < CG_MODE_COUNT; mode++) {
        for (size_t n = 1; n <= 160; n++)
            for (int round = 0; round < 3; round++)
                compare_once(&kernels, who->compare, n, (cg_mode)mode);
        for (size_t i = 0; i < sizeof lengths / sizeof *lengths; i++)
            compare_once(&kernels, who->compare, lengths[i], (cg_mode)mode);
    }
    sl_fpenv_leave(saved);
}

int main(void)
{
    cg_seed();
    static const sl_cpu_level levels[] = {SL_CPU_LEVEL_AVX2, SL_CPU_LEVEL_AVX512, SL_CPU_LEVEL_NEON};
    static const subject entries[] = {
        {SL_KERNEL_ENTRY_qrow, compare_qrow, 0},     {SL_KERNEL_ENTRY_rmsnorm, compare_rmsnorm, 0},
        {SL_KERNEL_ENTRY_rope_norm, compare_rope, 0}, {SL_KERNEL_ENTRY_silu_mul, compare_silu, 0},
        {SL_KERNEL_ENTRY_add, compare_add, 0},       {SL_KERNEL_ENTRY_exp2, compare_exp2, 0},
        {SL_KERNEL_ENTRY_sumexp, compare_sumexp, 0}, {SL_KERNEL_ENTRY_argmax, compare_argmax, 0},
        {SL_KERNEL_ENTRY_finite, compare_finite, 0}, {SL_KERNEL_ENTRY_rope_neox, compare_neox, 0},
        {SL_KERNEL_ENTRY_gelu_mul, compare_gelu, 0}, {SL_KERNEL_ENTRY_softcap, compare_softcap, 0},
    };
    enum { N_ENTRIES = sizeof entries / sizeof *entries, N_TESTS = N_ENTRIES * (sizeof levels / sizeof *levels) };
    static subject subjects[N_TESTS];
    static char names[N_TESTS][64];
    static struct CMUnitTest tests[N_TESTS];
    for (size_t i = 0; i < N_TESTS; i++) {
        subjects[i] = entries[i % N_ENTRIES];
        subjects[i].level = levels[i / N_ENTRIES];
        snprintf(names[i], sizeof names[i], "%s %s", sl_kernel_name(subjects[i].entry),
                 sl_cpu_level_name(subjects[i].level));
        tests[i] = (struct CMUnitTest){names[i], check_entry, NULL, NULL, &subjects[i]};
    }
    return cmocka_run_group_tests(tests, NULL, NULL);
}
