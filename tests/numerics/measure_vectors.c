/* Functions, norms and RoPE against binary64. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "kernel/math64.h"
#include "kernel/scalar.h"
#include "numerics/measure.h"

enum { WIDTH = 576, ROWS = 64, HEAD = 64, SWEEP_STEPS = 1 << 20 };

/* A function of one number over [from, to) in equal steps; errors are relative, the last "row" the worst of them. */
typedef struct sweep {
    const char *name, *range;
    double from, to;
    float (*f)(float);
    double (*exact)(double);
    double bound; /* relative */
} sweep;

static void measure_sweep(const sweep *s)
{
    measure_sum sum = {0};
    for (int i = 0; i < SWEEP_STEPS; i++) {
        float x = (float)(s->from + (s->to - s->from) * i / SWEEP_STEPS);
        double want = s->exact((double)x);
        if (want == 0.0)
            continue;
        double error = fabs((double)s->f(x) / want - 1.0);
        sum.error2 += error * error;
        sum.size2 += 1.0;
        sum.worst_row = fmax(sum.worst_row, error);
        sum.worst_of_bound = fmax(sum.worst_of_bound, error / s->bound);
    }
    measure_print(s->name, s->range, &sum);
}

static void add_norm(const sl_kernels *kernels, const float *x, const float *w, measure_sum *sum)
{
    float out[WIDTH];
    double exact[WIDTH], bound[WIDTH], square = 0.0, eps = (double)1e-5f;
    kernels->rmsnorm(out, x, w, WIDTH, 1e-5f);
    for (size_t i = 0; i < WIDTH; i++)
        square += (double)x[i] * (double)x[i];
    double r = 1.0 / sqrt(square / WIDTH + eps), relative = ((WIDTH / SL_LANES + 6) / 2.0 + 4) * MEASURE_U;
    for (size_t i = 0; i < WIDTH; i++) {
        exact[i] = (double)x[i] * r * (double)w[i];
        bound[i] = relative * fabs(exact[i]) + 0x1p-149;
    }
    measure_add(sum, out, exact, NULL, bound, WIDTH);
}

/* A head's 64 dimensions at a position, base 10000; the angle and its functions in binary64 count as exact. */
static void add_rope(const sl_kernels *kernels, const float *x, double position, measure_sum *sum)
{
    float out[HEAD], cosines[HEAD / 2], sines[HEAD / 2];
    double exact[HEAD], bound[HEAD];
    for (size_t i = 0; i < HEAD / 2; i++) {
        double angle = position * pow(10000.0, -2.0 * (double)i / HEAD), c = cos(angle), s = sin(angle), c64, s64;
        double a = (double)x[2 * i], b = (double)x[2 * i + 1];
        sl_sincos64(position * sl_pow64(10000.0, -2.0 * (double)i / HEAD), &s64, &c64);
        cosines[i] = (float)c64;
        sines[i] = (float)s64;
        exact[2 * i] = a * c - b * s;
        exact[2 * i + 1] = a * s + b * c;
        /* 2 u of the products and the sum, 1 u of sine and cosine, and the angle's own binary64 */
        double both = 3 * MEASURE_U + position * 0x1p-51;
        bound[2 * i] = both * (fabs(a * c) + fabs(b * s)) + position * 0x1p-51 * (fabs(a) + fabs(b));
        bound[2 * i + 1] = both * (fabs(a * s) + fabs(b * c)) + position * 0x1p-51 * (fabs(a) + fabs(b));
    }
    memcpy(out, x, sizeof out);
    kernels->rope_norm(out, cosines, sines, HEAD / 2);
    measure_add(sum, out, exact, NULL, bound, HEAD);
}

static void add_silu(const sl_kernels *kernels, const float *gate, const float *up, measure_sum *sum)
{
    float out[WIDTH];
    double exact[WIDTH], bound[WIDTH];
    kernels->silu_mul(out, gate, up, WIDTH);
    for (size_t i = 0; i < WIDTH; i++) {
        double g = (double)gate[i];
        exact[i] = g / (1.0 + exp(-g)) * (double)up[i];
        bound[i] = (0.86 * fabs(g) / log(2.0) + 6) * MEASURE_U * fabs(exact[i]) +
                   0x1p-126 * fabs(g * (double)up[i]) + 0x1p-149;
    }
    measure_add(sum, out, exact, NULL, bound, WIDTH);
}

/* The quantised input row: "exact" is the row itself, so that the error is the rounding to 8 bits. */
static void add_qrow(const sl_kernels *kernels, const float *x, measure_sum *sum)
{
    _Alignas(64) static uint8_t qrow[4 * WIDTH];
    float got[WIDTH];
    double exact[WIDTH], bound[WIDTH];
    if (sl_qrow_bytes(WIDTH) > sizeof qrow)
        abort();
    kernels->qrow(qrow, x, WIDTH, 1, WIDTH);
    const float *scale = (const float *)(const void *)qrow;
    const int8_t *q = (const int8_t *)(qrow + sl_qrow_q_off(WIDTH));
    for (size_t i = 0; i < WIDTH; i++) {
        got[i] = scale[i / SL_GROUP] * (float)q[i];
        exact[i] = (double)x[i];
        bound[i] = (double)scale[i / SL_GROUP] * (0.5 + 0x1p-15) + MEASURE_U * fabs((double)got[i]);
    }
    measure_add(sum, got, exact, NULL, bound, WIDTH);
}

static void add_sumexp(const sl_kernels *kernels, const float *x, size_t n, measure_sum *sum)
{
    float max = x[kernels->argmax(x, n)], got = kernels->sumexp(x, n, max);
    double exact = 0.0, bound = (double)n * 0x1p-126;
    for (size_t i = 0; i < n; i++) {
        double t = ((double)x[i] - (double)max) / log(2.0), term = exp2(t);
        exact += term;
        bound += term * (1.55 * fabs(t) + 6 + ceil((double)n / SL_LANES)) * MEASURE_U;
    }
    measure_add(sum, &got, &exact, NULL, &bound, 1);
}

typedef struct sums {
    measure_sum qrow, norm, rope, silu, sumexp;
} sums;

static void add_random(const sl_kernels *kernels, measure_set set, sums *s)
{
    static float x[ROWS][WIDTH], w[ROWS][WIDTH], logits[49152];
    measure_fill(x[0], ROWS, WIDTH, set, 21);
    measure_fill(w[0], ROWS, WIDTH, MEASURE_SET_NORMAL, 22);
    measure_fill(logits, 1, 49152, set, 23);
    for (size_t r = 0; r < ROWS; r++) {
        add_qrow(kernels, x[r], &s->qrow);
        add_norm(kernels, x[r], w[r], &s->norm);
        add_silu(kernels, x[r], w[r], &s->silu);
        for (size_t h = 0; h < WIDTH; h += HEAD)
            add_rope(kernels, x[r] + h, (double)(r * 16411), &s->rope); /* up to a million */
    }
    add_sumexp(kernels, logits, 49152, &s->sumexp);
}

/* Rows spread over the text. RoPE turns the model's queries at their own positions. */
static void add_real(const sl_kernels *kernels, const real_rows *real, sums *s)
{
    const sl_hparams *hp = &real->weights->hp;
    for (size_t n = 0; n < REAL_LAYERS; n++)
        for (size_t r = 0; r < real->n; r += real->n / ROWS) {
            const real_layer *l = &real->layers[n];
            add_qrow(kernels, l->mid + r * hp->n_ff, &s->qrow);
            add_norm(kernels, l->x + r * hp->n_embd, real->weights->layers[l->layer].attn_norm, &s->norm);
            add_silu(kernels, l->gate + r * hp->n_ff, l->up + r * hp->n_ff, &s->silu);
            for (size_t h = 0; h < hp->n_heads && hp->head_dim == HEAD; h++)
                add_rope(kernels, l->q_plain + (r * hp->n_heads + h) * HEAD, (double)r, &s->rope);
        }
    add_sumexp(kernels, real->logits, hp->n_vocab, &s->sumexp);
}

static void print_sums(const char *data, const sums *s)
{
    measure_print("8-bit input row", data, &s->qrow);
    measure_print("RMSNorm", data, &s->norm);
    measure_print("RoPE", data, &s->rope);
    measure_print("SiLU × up", data, &s->silu);
    measure_print("Σ exp2 over the vocabulary", data, &s->sumexp);
}

void measure_vectors(const sl_kernels *kernels, const real_rows *real)
{
    static const sweep sweeps[] = {
        {"exp2", "[−126, 0)", -126, 0, sl_scalar_exp2, exp2, 1.1e-7},
        {"exp2", "[0, 127)", 0, 127, sl_scalar_exp2, exp2, 1.1e-7},
        {"tanh", "(0, 1/8)", 0, 0.125, sl_scalar_tanh, tanh, 1.3e-7},
        {"tanh", "[1/8, 16)", 0.125, 16, sl_scalar_tanh, tanh, 1.2e-6},
    };
    for (size_t i = 0; i < sizeof sweeps / sizeof sweeps[0]; i++)
        measure_sweep(&sweeps[i]);
    for (int set = 0; set < MEASURE_SET_REAL; set++) {
        sums s = {0};
        add_random(kernels, (measure_set)set, &s);
        print_sums(measure_set_name((measure_set)set), &s);
    }
    if (real && real->weights->hp.n_embd >= WIDTH && real->weights->hp.n_ff >= WIDTH && real->n >= ROWS) {
        sums s = {0};
        add_real(kernels, real, &s);
        print_sums(measure_set_name(MEASURE_SET_REAL), &s);
    }
}
