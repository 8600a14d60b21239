/* A ggml library through dlopen: llama.cpp's (libggml-base, libggml-cpu, libggml) or one file as older versions and
 * ik_llama.cpp build it. The functions' types are those of ggml.h and ggml-backend.h at github.com/ggml-org/llama.cpp
 * and github.com/ikawrakow/ik_llama.cpp; of their structures only ggml_init's argument is known here, the others pass
 * as pointers. Runs in a child process: a wrong guess ends that one. */
#include <dlfcn.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "bench/peer.h"
#include "platform/os.h"

#if defined(__APPLE__)
#define SUFFIX ".dylib"
#else
#define SUFFIX ".so"
#endif

typedef struct ggml_params {
    size_t bytes;
    void *memory;
    bool has_no_data;
} ggml_params;

enum { GGML_F32 = 0, GGML_F16 = 1, GGML_Q8_0 = 8, DEVICE_CPU = 0, GRAPH_NODES = 4096, CONTEXT_BYTES = 64 << 20 };

/* X(result, name, arguments): there in both */
#define NEEDED(X)                                                                                                      \
    X(void *, ggml_init, (ggml_params))                                                                                \
    X(void *, ggml_new_tensor_2d, (void *, int, int64_t, int64_t))                                                     \
    X(void *, ggml_new_tensor_3d, (void *, int, int64_t, int64_t, int64_t))                                            \
    X(void *, ggml_view_3d, (void *, void *, int64_t, int64_t, int64_t, size_t, size_t, size_t))                       \
    X(void *, ggml_get_data, (const void *))                                                                           \
    X(size_t, ggml_nbytes, (const void *))                                                                             \
    X(size_t, ggml_row_size, (int, int64_t))                                                                           \
    X(size_t, ggml_quantize_chunk,                                                                                     \
      (int, const float *, void *, int64_t, int64_t, int64_t, const float *, const void *))                            \
    X(void *, ggml_mul_mat, (void *, void *, void *))                                                                  \
    X(void *, ggml_flash_attn_ext, (void *, void *, void *, void *, void *, float, float, float))                      \
    X(void *, ggml_new_graph_custom, (void *, size_t, bool))                                                           \
    X(void, ggml_build_forward_expand, (void *, void *))                                                               \
    X(int, ggml_backend_graph_compute, (void *, void *))

/* in one of them, or in some versions */
#define OPTIONAL(X)                                                                                                    \
    X(void *, ggml_backend_cpu_init, (void))                                                                           \
    X(void, ggml_backend_cpu_set_n_threads, (void *, int))                                                             \
    X(void, ggml_backend_load_all_from_path, (const char *))                                                           \
    X(void *, ggml_backend_init_by_type, (int, const char *))                                                          \
    X(void *, ggml_backend_get_device, (void *))                                                                       \
    X(void *, ggml_backend_dev_backend_reg, (void *))                                                                  \
    X(void *, ggml_backend_reg_get_proc_address, (void *, const char *))                                               \
    X(bool, ggml_backend_dev_supports_op, (void *, const void *))                                                      \
    X(void *, ggml_backend_alloc_ctx_tensors_from_buft, (void *, void *))                                              \
    X(void, ggml_backend_tensor_set, (void *, const void *, size_t, size_t))                                           \
    X(const char *, ggml_backend_buft_name, (void *))                                                                  \
    X(const char *, ggml_version, (void))                                                                              \
    X(bool, iqk_mul_mat, (void))

#define POINTER(result, name, arguments) result(*name) arguments;
typedef struct ggml_api {
    NEEDED(POINTER) OPTIONAL(POINTER)
} ggml_api;

enum { MOST_WAYS = 6, HANDLES = 3, MADE_ROWS = 64 };

typedef struct ggml_way {
    void *graph, *result;
    const float *expected; /* of the result's beginning, from the numbers before rounding; [n_expected] */
    size_t n_expected;
    char text[96];
} ggml_way;

struct bench_ggml {
    const bench_case_spec *spec;
    ggml_api api;
    void *handles[HANDLES];
    void *backend, *device;
    ggml_way ways[MOST_WAYS];
    size_t n_ways, best;
    size_t n_calls;  /* of a graph, in one timing */
    double calls_per_graph;
    bool is_fork; /* ik_llama.cpp */
};

/* -------------------------------------------------------------------------------------------------------- loading */

static void *symbol(const bench_ggml *g, const char *name)
{
    for (size_t i = 0; i < HANDLES; i++) {
        void *found = g->handles[i] ? dlsym(g->handles[i], name) : NULL;
        if (found)
            return found;
    }
    return NULL;
}

/* A function's address out of an object's, which C has no conversion for and POSIX allows. */
static void take(void *function, void *address)
{
    memcpy(function, &address, sizeof address);
}

static bool load(bench_ggml *g, const char *folder, bench_peer_reply *reply)
{
    static const char *const files[HANDLES] = {"libggml-base" SUFFIX, "libggml-cpu" SUFFIX, "libggml" SUFFIX};
    char path[600];
    for (size_t i = 0; i < HANDLES; i++) {
        snprintf(path, sizeof path, "%s/%s", folder, files[i]);
        g->handles[i] = dlopen(path, RTLD_NOW | RTLD_GLOBAL);
        if (!g->handles[i] && i == HANDLES - 1) {
            const char *why = dlerror();
            snprintf(reply->way, sizeof reply->way, "%.95s", why ? why : "no libggml there");
            return false;
        }
    }
    const char *missing = NULL;
#define TAKE_NEEDED(result, name, arguments)                                                                           \
    take(&g->api.name, symbol(g, #name));                                                                              \
    if (!g->api.name)                                                                                                  \
        missing = #name;
#define TAKE_OPTIONAL(result, name, arguments) take(&g->api.name, symbol(g, #name));
    NEEDED(TAKE_NEEDED)
    OPTIONAL(TAKE_OPTIONAL)
    if (missing)
        snprintf(reply->way, sizeof reply->way, "the library has no %s", missing);
    g->is_fork = g->api.iqk_mul_mat != NULL;
    const char *version = g->api.ggml_version ? g->api.ggml_version() : "";
    if (g->is_fork)
        snprintf(reply->name, sizeof reply->name, "ik_llama.cpp");
    else
        snprintf(reply->name, sizeof reply->name, "llama.cpp%s%.40s", *version ? ", ggml " : "", version);
    return !missing;
}

/* A processor's backend: built in, or (where every instruction set has a file) loaded by the library's choice. */
static bool start_backend(bench_ggml *g, const char *folder, bench_peer_reply *reply)
{
    ggml_api *a = &g->api;
    if (a->ggml_backend_cpu_init) {
        g->backend = a->ggml_backend_cpu_init();
    } else if (a->ggml_backend_load_all_from_path && a->ggml_backend_init_by_type) {
        a->ggml_backend_load_all_from_path(folder);
        g->backend = a->ggml_backend_init_by_type(DEVICE_CPU, NULL);
    }
    if (!g->backend) {
        snprintf(reply->way, sizeof reply->way, "the library has no backend for this processor");
        return false;
    }
    void (*set_threads)(void *, int) = a->ggml_backend_cpu_set_n_threads;
    if (a->ggml_backend_get_device && a->ggml_backend_dev_backend_reg && a->ggml_backend_reg_get_proc_address) {
        g->device = a->ggml_backend_get_device(g->backend);
        if (!set_threads)
            take(&set_threads, a->ggml_backend_reg_get_proc_address(a->ggml_backend_dev_backend_reg(g->device),
                                                                    "ggml_backend_set_n_threads"));
    }
    if (set_threads)
        set_threads(g->backend, (int)g->spec->n_threads);
    return set_threads != NULL;
}

/* ---------------------------------------------------------------------------------------------------------- filling */

static void *context(const bench_ggml *g, size_t data_bytes, bool has_no_data)
{
    return g->api.ggml_init((ggml_params){CONTEXT_BYTES + data_bytes, NULL, has_no_data});
}

/* The numbers before rounding: the same for the same seed. [n_rows][n] */
static float *make_rows(size_t n_rows, size_t n, uint32_t seed)
{
    float *x = malloc(n_rows * n * sizeof *x);
    for (size_t i = 0; x && i < n_rows * n; i++) {
        seed = seed * 1664525u + 1013904223u;
        x[i] = ((float)(seed >> 8) * 0x1p-23f - 1.0f) * 1.7320508f;
    }
    return x;
}

/* n_rows of the type, quantised by the library: MADE_ROWS of them made, then copied on. */
static bool fill_rows(const bench_ggml *g, int type, uint8_t *out, size_t n_rows, size_t n, uint32_t seed)
{
    size_t made = n_rows < MADE_ROWS ? n_rows : MADE_ROWS, row = g->api.ggml_row_size(type, (int64_t)n);
    float *x = make_rows(made, n, seed);
    if (!x)
        return false;
    if (type == GGML_F32)
        memcpy(out, x, made * row);
    else
        g->api.ggml_quantize_chunk(type, x, out, 0, (int64_t)made, (int64_t)n, NULL, NULL);
    free(x);
    for (size_t at = made * row; at < n_rows * row; at += made * row) {
        size_t left = n_rows * row - at;
        memcpy(out + at, out, left < made * row ? left : made * row);
    }
    return true;
}

static void add_way(bench_ggml *g, void *graph, void *result, const float *expected, size_t n, const char *text)
{
    ggml_way *way = &g->ways[g->n_ways++];
    *way = (ggml_way){graph, result, expected, n, ""};
    snprintf(way->text, sizeof way->text, "%.95s", text);
}

/* Roughly right will do: an operation that the library lacks for this processor may leave its output alone. */
static bool is_right(const bench_ggml *g, const ggml_way *way)
{
    const float *found = g->api.ggml_get_data(way->result);
    double wrong = 0, all = 0;
    for (size_t i = 0; i < way->n_expected; i++) {
        double difference = (double)found[i] - (double)way->expected[i];
        wrong += difference * difference;
        all += (double)way->expected[i] * (double)way->expected[i];
    }
    return wrong < 0.1 * all;
}

/* ------------------------------------------------------------------------------------------------------- attention */

enum { SEED_Q = 1, SEED_K = 2, SEED_V = 3, SEED_X = 4, SEED_W = 5 };

/* Head 0 of row 0: [head_dim]. Rows of K and V repeat, so that what counts is how often each is met. */
static const float *expected_attention(const bench_case_spec *s, size_t key_step)
{
    static float out[2][SL_MAX_HEAD_DIM];
    size_t dim = s->head_dim;
    float *q = make_rows(1, dim, SEED_Q), *k = make_rows(MADE_ROWS, dim, SEED_K);
    float *v = make_rows(MADE_ROWS, dim, SEED_V), *result = out[key_step == 1];
    double weights[MADE_ROWS] = {0}, sum = 0;
    for (size_t key = 0; key < s->keys; key++)
        weights[key * key_step % MADE_ROWS] += 1;
    for (size_t r = 0; q && k && v && r < MADE_ROWS; r++) {
        double score = 0;
        for (size_t d = 0; d < dim; d++)
            score += (double)q[d] * (double)k[r * dim + d];
        weights[r] *= exp(score / sqrt((double)dim));
        sum += weights[r];
    }
    for (size_t d = 0; v && d < dim; d++) {
        double value = 0;
        for (size_t r = 0; r < MADE_ROWS; r++)
            value += weights[r] / sum * (double)v[r * dim + d];
        result[d] = (float)value;
    }
    free(q);
    free(k);
    free(v);
    return result;
}

typedef struct ggml_attention {
    void *q, *kv[2], *mask;
} ggml_attention;

static bool make_tensors(const bench_ggml *g, void *ctx, ggml_attention *t)
{
    const bench_case_spec *s = g->spec;
    const ggml_api *a = &g->api;
    int type = s->kv_type == SL_KV_TYPE_F16 ? GGML_F16 : GGML_Q8_0;
    size_t n_kv = (size_t)s->keys * s->n_kv_heads * s->n_layers;
    for (int i = 0; i < 2; i++) {
        t->kv[i] = a->ggml_new_tensor_2d(ctx, type, s->head_dim, (int64_t)n_kv);
        if (!fill_rows(g, type, a->ggml_get_data(t->kv[i]), n_kv, s->head_dim, i == 0 ? SEED_K : SEED_V))
            return false;
    }
    t->q = a->ggml_new_tensor_3d(ctx, GGML_F32, s->head_dim, (int64_t)s->rows, s->n_heads);
    t->mask = a->ggml_new_tensor_2d(ctx, GGML_F16, (int64_t)s->keys, (int64_t)(s->rows + 63) / 64 * 64);
    memset(a->ggml_get_data(t->mask), 0, a->ggml_nbytes(t->mask));
    return fill_rows(g, GGML_F32, a->ggml_get_data(t->q), s->rows * s->n_heads, s->head_dim, SEED_Q);
}

/* A graph of all layers; next_key and next_head count rows of head_dim. */
static void add_attention(bench_ggml *g, void *ctx, const ggml_attention *t, size_t next_key, size_t next_head)
{
    const bench_case_spec *s = g->spec;
    const ggml_api *a = &g->api;
    size_t row = a->ggml_row_size(s->kv_type == SL_KV_TYPE_F16 ? GGML_F16 : GGML_Q8_0, s->head_dim);
    size_t layer = (size_t)s->keys * s->n_kv_heads * row;
    void *graph = a->ggml_new_graph_custom(ctx, GRAPH_NODES, false), *first = NULL;
    for (size_t i = 0; i < s->n_layers; i++) {
        void *view[2];
        for (int k = 0; k < 2; k++)
            view[k] = a->ggml_view_3d(ctx, t->kv[k], s->head_dim, (int64_t)s->keys, s->n_kv_heads, next_key * row,
                                      next_head * row, i * layer);
        float scale = 1.0f / sqrtf((float)s->head_dim);
        void *out = a->ggml_flash_attn_ext(ctx, t->q, view[0], view[1], t->mask, scale, 0.0f, 0.0f);
        a->ggml_build_forward_expand(graph, out);
        first = first ? first : out;
    }
    add_way(g, graph, first, expected_attention(s, next_key), s->head_dim,
            next_key == 1 ? "flash_attn_ext, head after head" : "flash_attn_ext, a token's heads side by side");
}

/* K and V as the engines keep them, a token's heads side by side, and head after head: whichever is faster counts. */
static bool make_attention(bench_ggml *g)
{
    const bench_case_spec *s = g->spec;
    size_t head = g->api.ggml_row_size(s->kv_type == SL_KV_TYPE_F16 ? GGML_F16 : GGML_Q8_0, s->head_dim);
    size_t keys = (size_t)s->keys, mask_rows = (s->rows + 63) / 64 * 64;
    size_t bytes = 2 * s->n_layers * keys * s->n_kv_heads * head + mask_rows * keys * 2;
    bytes += (s->n_layers * 2 + 1) * s->rows * s->n_heads * s->head_dim * sizeof(float);
    void *ctx = context(g, bytes, false);
    ggml_attention tensors;
    if (!ctx || !make_tensors(g, ctx, &tensors))
        return false;
    if (s->n_kv_heads > 1)
        add_attention(g, ctx, &tensors, s->n_kv_heads, 1);
    add_attention(g, ctx, &tensors, 1, keys);
    g->calls_per_graph = (double)s->n_layers;
    return true;
}

/* --------------------------------------------------------------------------------------------------------- product */

/* The first outputs of row 0: [MADE_ROWS]. */
static const float *expected_product(const bench_case_spec *s)
{
    static float out[MADE_ROWS];
    float *x = make_rows(1, s->n_in, SEED_X), *w = make_rows(MADE_ROWS, s->n_in, SEED_W);
    for (size_t o = 0; x && w && o < MADE_ROWS; o++) {
        double sum = 0;
        for (size_t i = 0; i < s->n_in; i++)
            sum += (double)x[i] * (double)w[o * s->n_in + i];
        out[o] = (float)sum;
    }
    free(x);
    free(w);
    return out;
}

static void *make_input(const bench_ggml *g, void *ctx)
{
    const bench_case_spec *s = g->spec;
    void *x = g->api.ggml_new_tensor_2d(ctx, GGML_F32, (int64_t)s->n_in, (int64_t)s->rows);
    fill_rows(g, GGML_F32, g->api.ggml_get_data(x), s->rows, s->n_in, SEED_X);
    return x;
}

static size_t product_bytes(const bench_case_spec *s)
{
    return s->rows * (s->n_in + s->n_out) * sizeof(float);
}

static void add_product(bench_ggml *g, void *ctx, void *product, const char *text)
{
    void *graph = g->api.ggml_new_graph_custom(ctx, GRAPH_NODES, false);
    g->api.ggml_build_forward_expand(graph, product);
    size_t n = g->spec->n_out < MADE_ROWS ? g->spec->n_out : MADE_ROWS;
    add_way(g, graph, product, expected_product(g->spec), n, text);
}

/* Weights in the library's plain memory. */
static bool make_plain(bench_ggml *g, int type, const char *text)
{
    const bench_case_spec *s = g->spec;
    const ggml_api *a = &g->api;
    size_t row = a->ggml_row_size(type, (int64_t)s->n_in);
    void *ctx = row ? context(g, s->n_out * row + product_bytes(s), false) : NULL;
    if (!ctx)
        return false;
    void *w = a->ggml_new_tensor_2d(ctx, type, (int64_t)s->n_in, (int64_t)s->n_out);
    if (!fill_rows(g, type, a->ggml_get_data(w), s->n_out, s->n_in, SEED_W))
        return false;
    add_product(g, ctx, a->ggml_mul_mat(ctx, w, make_input(g, ctx)), text);
    return true;
}

/* Weights in one of the processor's further kinds of memory, where they are repacked as they are set: tiles of AMX,
 * interleaved rows. */
static void make_packed(bench_ggml *g, int type, void *kind)
{
    const bench_case_spec *s = g->spec;
    const ggml_api *a = &g->api;
    void *ctx = context(g, product_bytes(s), false), *weights = context(g, 0, true);
    if (!ctx || !weights || g->n_ways == MOST_WAYS)
        return;
    void *w = a->ggml_new_tensor_2d(weights, type, (int64_t)s->n_in, (int64_t)s->n_out);
    void *buffer = a->ggml_backend_alloc_ctx_tensors_from_buft(weights, kind);
    void *product = buffer ? a->ggml_mul_mat(ctx, w, make_input(g, ctx)) : NULL;
    if (!product || !a->ggml_backend_dev_supports_op(g->device, product))
        return;
    size_t bytes = s->n_out * a->ggml_row_size(type, (int64_t)s->n_in);
    uint8_t *rows = malloc(bytes);
    if (rows && fill_rows(g, type, rows, s->n_out, s->n_in, SEED_W)) {
        char text[96];
        a->ggml_backend_tensor_set(w, rows, 0, bytes);
        snprintf(text, sizeof text, "mul_mat, weights in %.60s", a->ggml_backend_buft_name(kind));
        add_product(g, ctx, product, text);
    }
    free(rows);
}

static bool make_product(bench_ggml *g, bool plain_only)
{
    const bench_wtype *type = bench_wtype_find(g->spec->wtype);
    const ggml_api *a = &g->api;
    g->calls_per_graph = 1;
    if (!type || !make_plain(g, type->ggml_type, "mul_mat, weights as in the file"))
        return false;
    if (plain_only)
        return true;
    if (g->is_fork && type->ggml_repacked)
        make_plain(g, type->ggml_repacked, "mul_mat, weights repacked");
    if (!g->device || !a->ggml_backend_dev_supports_op || !a->ggml_backend_alloc_ctx_tensors_from_buft ||
        !a->ggml_backend_tensor_set || !a->ggml_backend_buft_name)
        return true;
    void **(*kinds_of)(void *);
    take(&kinds_of, a->ggml_backend_reg_get_proc_address(a->ggml_backend_dev_backend_reg(g->device),
                                                         "ggml_backend_dev_get_extra_bufts"));
    void **kinds = kinds_of ? kinds_of(g->device) : NULL;
    for (size_t i = 0; kinds && kinds[i]; i++)
        make_packed(g, type->ggml_type, kinds[i]);
    return true;
}

/* --------------------------------------------------------------------------------------------------------- timing */

static double compute(const bench_ggml *g, size_t way, size_t n)
{
    double start = sl_os_seconds();
    for (size_t i = 0; i < n; i++)
        if (g->api.ggml_backend_graph_compute(g->backend, g->ways[way].graph) != 0)
            exit(3);
    return sl_os_seconds() - start;
}

/* Each once to warm up, then twice, the better counting (of slow ones the first); the best is what is timed from now
 * on. What computes something else is none. */
static bool choose(bench_ggml *g)
{
    double best = 0;
    for (size_t i = 0; i < g->n_ways; i++) {
        double least = compute(g, i, 1);
        for (int k = 0; k < 2 && least < 0.5; k++) {
            double seconds = compute(g, i, 1);
            least = k == 0 || seconds < least ? seconds : least;
        }
        if (is_right(g, &g->ways[i]) && (best <= 0 || least < best)) {
            g->best = i;
            best = least;
        }
    }
    g->n_calls = best > 0 && best < g->spec->seconds ? (size_t)(g->spec->seconds / best) + 1 : 1;
    return best > 0;
}

bench_ggml *bench_ggml_open(const char *folder, const bench_case_spec *spec, bool plain_only, bench_peer_reply *reply)
{
    static bench_ggml g;
    g.spec = spec;
    if (!load(&g, folder, reply) || !start_backend(&g, folder, reply))
        return NULL;
    bool made = spec->group == SL_BENCH_GROUP_ATTENTION ? make_attention(&g) : make_product(&g, plain_only);
    if (!made) {
        snprintf(reply->way, sizeof reply->way, "no memory, or a type that the library lacks");
        return NULL;
    }
    if (!choose(&g)) {
        snprintf(reply->way, sizeof reply->way, "its results are wrong");
        return NULL;
    }
    snprintf(reply->way, sizeof reply->way, "%s", g.ways[g.best].text);
    return &g;
}

void bench_ggml_time(bench_ggml *ggml, bench_peer_reply *reply)
{
    reply->ok = true;
    reply->seconds = compute(ggml, ggml->best, ggml->n_calls) / (double)ggml->n_calls / ggml->calls_per_graph;
}
