/* The small entries, each thread on data of its own that its first cache holds. */
#include <string.h>

#include "bench/kernel_case.h"
#include "bench/synth.h"

enum { N = 2048, CALLS = 64, ITEMS_PER_THREAD = 8, DIM = 64 };

/* A worker's: three operands, and room for tiles and quantised rows. */
typedef struct vector_room {
    float a[N], b[N], c[N];
    uint8_t tile[256 * DIM], row[8 * N];
    float sum;
} vector_room;

typedef void (*vector_fn)(const sl_kernels *kernels, vector_room *room);

static void call_exp2(const sl_kernels *kernels, vector_room *room)
{
    kernels->exp2(room->c, room->a, N);
}

static void call_sumexp(const sl_kernels *kernels, vector_room *room)
{
    room->sum += kernels->sumexp(room->a, N, 2.0f);
}

static void call_argmax(const sl_kernels *kernels, vector_room *room)
{
    room->sum += (float)kernels->argmax(room->a, N);
}

static void call_finite(const sl_kernels *kernels, vector_room *room)
{
    room->sum += kernels->finite(room->a, N) ? 1.0f : 0.0f;
}

static void call_add(const sl_kernels *kernels, vector_room *room)
{
    kernels->add(room->c, room->a, N);
}

static void call_silu_mul(const sl_kernels *kernels, vector_room *room)
{
    kernels->silu_mul(room->c, room->a, room->b, N);
}

static void call_rmsnorm(const sl_kernels *kernels, vector_room *room)
{
    kernels->rmsnorm(room->c, room->a, room->b, N, 1e-5f);
}

/* A rotation, again and again: lengths are kept, about. */
static void call_rope(const sl_kernels *kernels, vector_room *room)
{
    kernels->rope_norm(room->a, room->b, room->c, N / 2);
}

static void call_qrow(const sl_kernels *kernels, vector_room *room)
{
    kernels->qrow(room->row, room->a, N, 1, N);
}

static void pack(sl_kv_pack_fn fn, vector_room *room)
{
    for (size_t key = 0; key < N / DIM; key++)
        room->sum += fn(room->tile, key, room->a + key * DIM, room->b + key * DIM, DIM) ? 0.0f : 1.0f;
}

static void call_pack_f16(const sl_kernels *kernels, vector_room *room)
{
    pack(kernels->kv_pack_f16, room);
}

static void call_pack_q8(const sl_kernels *kernels, vector_room *room)
{
    pack(kernels->kv_pack_q8, room);
}

/* Bytes: of what is read and written, each operand once. */
static const struct {
    const char *name;
    size_t entry;
    vector_fn fn;
    double bytes;
} vectors[] = {
    {"exp2", SL_KERNEL_ENTRY_exp2, call_exp2, 8.0 * N},
    {"sumexp", SL_KERNEL_ENTRY_sumexp, call_sumexp, 4.0 * N},
    {"argmax", SL_KERNEL_ENTRY_argmax, call_argmax, 4.0 * N},
    {"finite", SL_KERNEL_ENTRY_finite, call_finite, 4.0 * N},
    {"add", SL_KERNEL_ENTRY_add, call_add, 12.0 * N},
    {"silu_mul", SL_KERNEL_ENTRY_silu_mul, call_silu_mul, 12.0 * N},
    {"rmsnorm", SL_KERNEL_ENTRY_rmsnorm, call_rmsnorm, 12.0 * N},
    {"rope_norm", SL_KERNEL_ENTRY_rope_norm, call_rope, 12.0 * N},
    {"qrow", SL_KERNEL_ENTRY_qrow, call_qrow, 5.25 * N},
    {"kv_pack_f16", SL_KERNEL_ENTRY_kv_pack_f16, call_pack_f16, 12.0 * N},
    {"kv_pack_q8", SL_KERNEL_ENTRY_kv_pack_q8, call_pack_q8, 8.0 * N + 2.125 * N},
};

size_t bench_vectors_count(void)
{
    return sizeof vectors / sizeof vectors[0];
}

static void call_many(void *arg, size_t item, size_t worker)
{
    (void)item;
    bench_case *c = arg;
    vector_room *room = (vector_room *)(void *)(c->map + worker * c->per_item);
    for (size_t i = 0; i < CALLS; i++)
        vectors[c->spec.vector].fn(&c->m->kernels, room);
}

static sl_status run_vector(bench_case *c, sl_err *err)
{
    (void)err;
    sl_pool_run(c->m->pool, ITEMS_PER_THREAD * sl_pool_threads(c->m->pool), call_many, c);
    return SL_OK;
}

/* Angles of one step: cosine near one, sine small, both exact enough for thousands of turns. */
static void fill_room(const bench_machine *m, vector_room *room, bool is_rope)
{
    bench_fill_floats(m, room->a, N, 1);
    bench_fill_floats(m, room->b, N, 2);
    for (size_t i = 0; is_rope && i < N; i++) {
        room->b[i] = 0.8f;
        room->c[i] = 0.6f;
    }
}

sl_status bench_vector_open(bench_case *c, sl_err *err)
{
    const bench_machine *m = c->m;
    size_t threads = sl_pool_threads(m->pool), v = c->spec.vector;
    c->per_item = (sizeof(vector_room) + 4095) / 4096 * 4096 + 64; /* not all at the same place of their caches */
    c->map_bytes = threads * c->per_item;
    sl_status status = sl_mem_map(&c->m->budget, c->map_bytes, "vectors to measure", &c->map, err);
    if (status != SL_OK)
        return status;
    for (size_t i = 0; i < threads; i++)
        fill_room(m, (vector_room *)(void *)(c->map + i * c->per_item), vectors[v].fn == call_rope);
    c->run = run_vector;
    c->calls_per_run = ITEMS_PER_THREAD * threads * CALLS;
    c->operations = N;
    c->bytes = vectors[v].bytes;
    c->compute = BENCH_PEAK_NONE;
    c->memory = BENCH_PEAK_CACHE;
    c->row.name = vectors[v].name;
    c->row.level = sl_cpu_level_name(m->kernels.level[vectors[v].entry]);
    c->row.n_in = N;
    return SL_OK;
}
