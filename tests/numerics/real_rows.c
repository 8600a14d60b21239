/* A model's rows, computed through the kernels alone: a plain forward pass over one text, as a check of nothing but a
 * source of real numbers. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/tok_from_gguf.h"
#include "kernel/math64.h"
#include "numerics/measure.h"

enum { MAX_TEXT = 1 << 16 };

static float *new_floats(size_t n)
{
    float *out = calloc(n, sizeof *out);
    if (!out)
        abort();
    return out;
}

static float *copy_of(const float *rows, size_t n)
{
    float *out = new_floats(n);
    memcpy(out, rows, n * sizeof *out);
    return out;
}

/* ids of the text's first tokens */
static size_t read_ids(const sl_gguf *gguf, const char *path, sl_budget *budget, int32_t ids[REAL_TOKENS])
{
    static char text[MAX_TEXT];
    sl_err err = {SL_OK, ""};
    sl_tok *tok = NULL;
    sl_ids list = {0};
    FILE *file = fopen(path, "rb");
    size_t size = file ? fread(text, 1, sizeof text, file) : 0, n = 0;
    if (file)
        fclose(file);
    if (size == 0) {
        fprintf(stderr, "%s: nothing to read\n", path);
        return 0;
    }
    if (tok_from_gguf(gguf, NULL, budget, &tok, &err) != SL_OK ||
        sl_tok_encode(tok, text, sl_utf8_check(text, size), false, &list, NULL, &err) != SL_OK)
        fprintf(stderr, "%s\n", err.text);
    else
        n = list.n < REAL_TOKENS ? list.n / SL_TILE * SL_TILE : REAL_TOKENS;
    memcpy(ids, list.ids, n * sizeof *ids);
    sl_ids_deinit(&list, budget);
    sl_tok_destroy(tok);
    return n;
}

static void project(const sl_kernels *kernels, const sl_matrix *matrix, const float *x, size_t n_rows, float *out)
{
    sl_gemm_args args = {.packed = matrix->packed,
                         .n_out = matrix->n_out,
                         .n_in = matrix->n_in,
                         .n = matrix->n_out,
                         .x = x,
                         .x_stride = matrix->n_in,
                         .n_rows = n_rows,
                         .out = out,
                         .out_stride = matrix->n_out};
    void *qrows = NULL;
    if (sl_wtype_is_quantised(matrix->type)) {
        qrows = aligned_alloc(64, n_rows * sl_qrow_bytes(matrix->n_in));
        if (!qrows)
            abort();
        kernels->qrow(qrows, x, matrix->n_in, n_rows, matrix->n_in);
        args.qrows = qrows;
    }
    sl_kernels_gemm(kernels, matrix->type)(&args);
    free(qrows);
}

static void norm_rows(const sl_kernels *kernels, const real_rows *rows, const float *x, const float *weight, float *out)
{
    size_t n_embd = rows->weights->hp.n_embd;
    for (size_t r = 0; r < rows->n; r++)
        kernels->rmsnorm(out + r * n_embd, x + r * n_embd, weight, n_embd, rows->weights->hp.norm_eps);
}

static void rotate_rows(const sl_kernels *kernels, const real_rows *rows, float *x, size_t n_heads)
{
    const sl_hparams *hp = &rows->weights->hp;
    float cos[SL_MAX_HEAD_DIM], sin[SL_MAX_HEAD_DIM];
    for (size_t r = 0; r < rows->n; r++) {
        for (size_t i = 0; i < hp->rope.dims / 2; i++) {
            double c, s;
            sl_sincos64((double)r / hp->rope.factor * rows->freq[i], &s, &c);
            cos[i] = (float)c;
            sin[i] = (float)s;
        }
        for (size_t h = 0; h < n_heads; h++)
            kernels->rope_norm(x + (r * n_heads + h) * hp->head_dim, cos, sin, hp->rope.dims / 2);
    }
}

/* Sixteen neighbours of one head at a time. */
static void attend_rows(const sl_kernels *kernels, const real_rows *rows, const real_layer *l, float *out)
{
    const sl_hparams *hp = &rows->weights->hp;
    size_t D = hp->head_dim, per_kv = hp->n_heads / hp->n_kv_heads;
    for (size_t h = 0; h < hp->n_heads; h++)
        for (size_t first = 0; first < rows->n; first += SL_LANES) {
            measure_attn a = {.type = SL_KV_TYPE_F16,
                              .head_dim = D,
                              .n_keys = first + SL_LANES,
                              .n_queries = SL_LANES,
                              .kv_stride = hp->n_kv_heads * D,
                              .k = l->k + h / per_kv * D,
                              .v = l->v + h / per_kv * D};
            for (size_t i = 0; i < SL_LANES; i++) {
                a.pos[i] = first + i;
                a.q[i] = l->q + ((first + i) * hp->n_heads + h) * D;
                a.out[i] = out + ((first + i) * hp->n_heads + h) * D;
            }
            measure_attend(kernels, &a);
        }
}

/* x goes through one layer; what it computes stays in `l`. */
static void run_layer(const sl_kernels *kernels, const real_rows *rows, real_layer *l, float *x)
{
    const sl_hparams *hp = &rows->weights->hp;
    const sl_layer_weights *w = &rows->weights->layers[l->layer];
    size_t n = rows->n, q_dim = hp->n_heads * hp->head_dim, kv_dim = hp->n_kv_heads * hp->head_dim;
    float *normed = new_floats(n * hp->n_embd), *heads = new_floats(n * q_dim), *sum = new_floats(n * hp->n_embd);
    l->x = copy_of(x, n * hp->n_embd);
    l->q = new_floats(n * q_dim);
    l->k = new_floats(n * kv_dim);
    l->v = new_floats(n * kv_dim);
    l->gate = new_floats(n * hp->n_ff);
    l->up = new_floats(n * hp->n_ff);
    l->mid = new_floats(n * hp->n_ff);
    norm_rows(kernels, rows, x, w->attn_norm, normed);
    project(kernels, &w->wq, normed, n, l->q);
    project(kernels, &w->wk, normed, n, l->k);
    project(kernels, &w->wv, normed, n, l->v);
    l->q_plain = copy_of(l->q, n * q_dim);
    rotate_rows(kernels, rows, l->q, hp->n_heads);
    rotate_rows(kernels, rows, l->k, hp->n_kv_heads);
    attend_rows(kernels, rows, l, heads);
    project(kernels, &w->wo, heads, n, sum);
    kernels->add(x, sum, n * hp->n_embd);
    norm_rows(kernels, rows, x, w->ffn_norm, normed);
    project(kernels, &w->w_gate, normed, n, l->gate);
    project(kernels, &w->w_up, normed, n, l->up);
    for (size_t r = 0; r < n; r++)
        kernels->silu_mul(l->mid + r * hp->n_ff, l->gate + r * hp->n_ff, l->up + r * hp->n_ff, hp->n_ff);
    project(kernels, &w->w_down, l->mid, n, sum);
    kernels->add(x, sum, n * hp->n_embd);
    free(normed);
    free(heads);
    free(sum);
}

static void free_layer(real_layer *l)
{
    float *const all[] = {l->x, l->q_plain, l->q, l->k, l->v, l->gate, l->up, l->mid};
    for (size_t i = 0; i < sizeof all / sizeof all[0]; i++)
        free(all[i]);
}

static void run_model(const sl_kernels *kernels, const int32_t *ids, real_rows *rows)
{
    const sl_weights *w = rows->weights;
    size_t n_embd = w->hp.n_embd, kept = 0;
    float *x = new_floats(rows->n * n_embd), *last = new_floats(n_embd);
    rows->freq = calloc(w->hp.rope.dims / 2 + 1, sizeof *rows->freq);
    if (!rows->freq)
        abort();
    for (size_t i = 0; i < w->hp.rope.dims / 2; i++)
        rows->freq[i] = sl_pow64(w->hp.rope.base, -2.0 * (double)i / (double)w->hp.rope.dims) /
                        (w->rope_factors ? (double)w->rope_factors[i] : 1.0);
    for (size_t r = 0; r < rows->n; r++)
        sl_weight_row(w->embedding.type, w->embedding.packed, w->embedding.n_out, n_embd, (size_t)ids[r],
                      x + r * n_embd);
    for (size_t i = 0; i < w->hp.n_layers; i++) {
        real_layer l = {.layer = i};
        run_layer(kernels, rows, &l, x);
        if (kept < REAL_LAYERS && i >= kept * (w->hp.n_layers - 1) / (REAL_LAYERS - 1))
            rows->layers[kept++] = l; /* the first, the last, and some between */
        else
            free_layer(&l);
        fprintf(stderr, "\rlayer %zu of %u", i + 1, (unsigned)w->hp.n_layers);
    }
    fprintf(stderr, "\n");
    rows->logits = new_floats(w->hp.n_vocab);
    kernels->rmsnorm(last, x + (rows->n - 1) * n_embd, w->output_norm, n_embd, w->hp.norm_eps);
    project(kernels, w->output, last, 1, rows->logits);
    free(x);
    free(last);
}

bool real_rows_make(const char *model, const char *text, const sl_kernels *kernels, real_rows *out)
{
    static int32_t ids[REAL_TOKENS];
    sl_err err = {SL_OK, ""};
    sl_gguf *gguf = NULL;
    sl_budget_init(&out->budget, UINT64_MAX);
    sl_status status = sl_gguf_open(model, &out->budget, &gguf, &err);
    if (status == SL_OK)
        status = sl_weights_load(gguf, &out->budget, NULL, NULL, &out->weights, &err);
    if (status != SL_OK) {
        fprintf(stderr, "%s\n", err.text);
        return false;
    }
    out->n = read_ids(gguf, text, &out->budget, ids);
    sl_gguf_close(gguf);
    if (out->n == 0 || out->weights->hp.n_layers < REAL_LAYERS) {
        fprintf(stderr, "too few tokens or layers\n");
        return false;
    }
    run_model(kernels, ids, out);
    return true;
}
