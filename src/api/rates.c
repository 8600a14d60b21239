#include "api/rates.h"

#include <assert.h>
#include <math.h>
#include <string.h>

#include "base/fpenv.h"
#include "platform/os.h"

enum { MIB = 1 << 20 };

static size_t min_size(size_t a, size_t b)
{
    return a < b ? a : b;
}

static size_t max_size(size_t a, size_t b)
{
    return a > b ? a : b;
}

static double seconds_of(const sl_rates_machine *machine)
{
    return machine->seconds > 0.0 ? machine->seconds : 0.05;
}

/* At most `most`, at most a quarter of what the budget has left: others measure beside it. */
static size_t room_for(const sl_rates_machine *machine, size_t most)
{
    uint64_t left = sl_budget_left(machine->budget) / 4;
    return left < most ? (size_t)left : most;
}

static size_t pad64(size_t bytes)
{
    return (bytes + 63) & ~(size_t)63;
}

static uint32_t next_random(uint32_t *state)
{
    *state = *state * 1664525u + 1013904223u;
    return *state >> 8;
}

/* Runs of the task a second, in the best of several stretches: what other programs take makes it less, never more, and
 * a floor is wanted. At least one run. */
static double runs_per_s(const sl_rates_machine *machine, size_t n_items, sl_pool_task task, void *arg,
                         void (*between)(void *arg))
{
    enum { STRETCHES = 8 };
    double start = sl_os_seconds(), now = start, best = 0.0;
    do {
        double stretch_start = now, runs = 0.0;
        do {
            if (between)
                between(arg);
            sl_pool_run(machine->pool, n_items, task, arg);
            runs += 1.0;
            now = sl_os_seconds();
        } while (now - stretch_start < seconds_of(machine) / STRETCHES);
        best = runs / (now - stretch_start) > best ? runs / (now - stretch_start) : best;
    } while (now - start < seconds_of(machine));
    return best;
}

/* ----------------------------------------------------------------------------------------------------------- memory */

enum { PIECE_BYTES = 256 << 10 };

typedef struct memory_work {
    uint8_t *block;
    size_t bytes;
    uint64_t sums[64]; /* what was read must be used */
} memory_work;

static void touch_piece(void *arg, size_t item, size_t worker)
{
    (void)worker;
    memory_work *work = arg;
    size_t first = item * PIECE_BYTES;
    memset(work->block + first, (int)item + 1, min_size(PIECE_BYTES, work->bytes - first));
}

static void read_piece(void *arg, size_t item, size_t worker)
{
    memory_work *work = arg;
    size_t first = item * PIECE_BYTES, bytes = min_size(PIECE_BYTES, work->bytes - first);
    const uint64_t *words = (const uint64_t *)(const void *)(work->block + first);
    uint64_t sum[8] = {0};
    for (size_t i = 0; i + 8 <= bytes / sizeof *words; i += 8)
        for (size_t k = 0; k < 8; k++)
            sum[k] += words[i + k];
    for (size_t k = 0; k < 8; k++)
        work->sums[worker % 64] ^= sum[k];
}

sl_status sl_rates_memory(const sl_rates_machine *machine, double *bytes_per_s, sl_err *err)
{
    *bytes_per_s = 0.0;
    memory_work work = {.bytes = max_size(room_for(machine, 64 * MIB), MIB)};
    sl_status status = sl_mem_map(machine->budget, work.bytes, "memory to measure", &work.block, err);
    if (status != SL_OK)
        return status;
    size_t n_items = (work.bytes + PIECE_BYTES - 1) / PIECE_BYTES;
    sl_pool_run(machine->pool, n_items, touch_piece, &work);
    *bytes_per_s = (double)work.bytes * runs_per_s(machine, n_items, read_piece, &work, NULL);
    sl_mem_unmap(machine->budget, work.block, work.bytes);
    return SL_OK;
}

/* -------------------------------------------------------------------------------------------------------- attention */

enum {
    PART_GROUPS = 16,
    CHUNK_BLOCKS = 16,
    TILE_KINDS = 4,
    MAX_PARTS = 8,        /* of one run of the pool, */
    RUN_TILE_BLOCKS = 256 /* so many that it has this much to do */
};

/* As attention lays its work out (attn/attn.c): items are a KV head and a chunk of query blocks; with few items, those
 * of two segments side by side. */
typedef struct attn_work {
    const sl_rates_attn *shape;
    const sl_kernels *kernels;
    size_t n_heads;  /* KV heads that are measured; one of a second segment counts as another */
    size_t n_blocks; /* query blocks of a KV head that are measured */
    size_t n_queries, chunk, n_chunks;
    size_t qblock_bytes, state_bytes, scratch_bytes, tile_bytes;
    size_t n_tiles, n_groups, first_group;
    size_t map_bytes;
    uint8_t *map, *qblocks, *states, *scratch, *tiles;
} attn_work;

static const uint8_t *tile_at(const attn_work *w, size_t group, size_t head)
{
    return w->tiles + ((w->first_group + group) * w->n_heads + head) % w->n_tiles * w->tile_bytes;
}

static void fold_item(void *arg, size_t item, size_t worker)
{
    const attn_work *w = arg;
    size_t head = item / w->n_chunks, first = item % w->n_chunks * w->chunk;
    size_t n = min_size(w->chunk, w->n_blocks - first), block = head * w->n_blocks + first;
    sl_tile_args args = {
        .head_dim = w->shape->head_dim,
        .qblocks = w->qblocks + block * w->qblock_bytes,
        .states = w->states + block * w->state_bytes,
        .state_stride = w->state_bytes,
        .n_queries = min_size(n * SL_LANES, w->n_queries - first * SL_LANES),
        .scratch = w->scratch + worker * w->scratch_bytes,
    };
    for (size_t g = 0; g < w->n_groups; g++) {
        args.tile = tile_at(w, g, head);
        args.next = g + 1 < w->n_groups ? tile_at(w, g + 1, head) : NULL;
        sl_kernels_attn_tile(w->kernels, w->shape->type)(&args);
    }
}

static void next_part(void *arg)
{
    attn_work *w = arg;
    w->first_group += w->n_groups;
}

/* Enough of a shape to know its rate: heads that keep every thread busy, blocks that fill every item. */
static void lay_out_attention(const sl_rates_machine *machine, attn_work *w)
{
    const sl_rates_attn *shape = w->shape;
    size_t threads = sl_pool_threads(machine->pool), group = shape->n_heads / shape->n_kv_heads;
    size_t per_head = (4 * threads + shape->n_kv_heads - 1) / shape->n_kv_heads;
    size_t all_blocks = (shape->n_rows * group + SL_LANES - 1) / SL_LANES;
    w->chunk = min_size(CHUNK_BLOCKS, (all_blocks + per_head - 1) / per_head);
    w->n_blocks = min_size(all_blocks, per_head * CHUNK_BLOCKS);
    w->n_queries = min_size(shape->n_rows * group, w->n_blocks * SL_LANES);
    w->n_chunks = (w->n_blocks + w->chunk - 1) / w->chunk;
    size_t sides = shape->n_kv_heads * w->n_chunks < 2 * threads ? 2 : 1;
    w->n_heads = min_size(sides * shape->n_kv_heads, max_size(2 * threads, 4));
    size_t part_work = PART_GROUPS * shape->n_kv_heads * all_blocks;
    w->n_groups = PART_GROUPS * min_size(MAX_PARTS, (RUN_TILE_BLOCKS + part_work - 1) / part_work);
    w->qblock_bytes = sl_qblock_bytes(shape->type, shape->head_dim);
    w->state_bytes = sl_state_bytes(shape->head_dim);
    w->scratch_bytes = pad64(sl_tile_scratch_bytes(shape->type, shape->head_dim));
    w->tile_bytes = sl_tile_bytes(shape->type, shape->head_dim);
    size_t most = min_size(PART_GROUPS * 8, max_size(room_for(machine, 4 * MIB) / (w->n_heads * w->tile_bytes), 1));
    w->n_tiles = most * w->n_heads;
    w->map_bytes = w->n_heads * w->n_blocks * (w->qblock_bytes + w->state_bytes) + threads * w->scratch_bytes +
                   w->n_tiles * w->tile_bytes;
}

/* Random keys, values and queries, rounded and laid out as the run's own. */
static void fill_attention(attn_work *w)
{
    const sl_rates_attn *shape = w->shape;
    float rows[SL_LANES][SL_MAX_HEAD_DIM];
    const float *q[SL_LANES];
    uint32_t seed = 1;
    size_t n_kinds = min_size(w->n_tiles, TILE_KINDS);
    for (size_t i = 0; i < SL_LANES; i++)
        q[i] = rows[i];
    for (size_t i = 0; i < n_kinds * SL_TILE; i++) {
        for (size_t d = 0; d < 2 * SL_MAX_HEAD_DIM; d++)
            rows[d / SL_MAX_HEAD_DIM][d % SL_MAX_HEAD_DIM] = (float)next_random(&seed) * 0x1p-23f - 1.0f;
        (void)sl_kernels_kv_pack(w->kernels, shape->type)(w->tiles + i / SL_TILE * w->tile_bytes, i % SL_TILE, rows[0],
                                                          rows[1], shape->head_dim);
    }
    for (size_t i = n_kinds; i < w->n_tiles; i++)
        memcpy(w->tiles + i * w->tile_bytes, w->tiles + i % n_kinds * w->tile_bytes, w->tile_bytes);
    for (size_t i = 0; i < SL_LANES; i++)
        for (size_t d = 0; d < shape->head_dim; d++)
            rows[i][d] = (float)next_random(&seed) * 0x1p-22f - 2.0f;
    float c = SL_LOG2E / sqrtf((float)shape->head_dim);
    for (size_t b = 0; b < w->n_heads * w->n_blocks; b++) {
        sl_kernels_attn_qpack(w->kernels, shape->type)(w->qblocks + b * w->qblock_bytes, q, SL_LANES, shape->head_dim,
                                                       c);
        float *state = (float *)(void *)(w->states + b * w->state_bytes);
        for (size_t lane = 0; lane < SL_LANES; lane++)
            state[lane] = -INFINITY;
    }
}

sl_status sl_rates_attention(const sl_rates_machine *machine, const sl_rates_attn *shape, double *keys_per_s,
                             sl_err *err)
{
    assert(shape->n_rows > 0 && shape->n_heads % shape->n_kv_heads == 0);
    *keys_per_s = 0.0;
    attn_work w = {.shape = shape, .kernels = machine->kernels};
    lay_out_attention(machine, &w);
    sl_status status = sl_mem_map(machine->budget, w.map_bytes, "attention to measure", &w.map, err);
    if (status != SL_OK)
        return status;
    w.tiles = w.map;
    w.qblocks = w.tiles + w.n_tiles * w.tile_bytes;
    w.states = w.qblocks + w.n_heads * w.n_blocks * w.qblock_bytes;
    w.scratch = w.states + w.n_heads * w.n_blocks * w.state_bytes;
    sl_fpenv saved = sl_fpenv_enter();
    fill_attention(&w);
    sl_fpenv_leave(saved);
    /* Whole parts at a time, as the run does, unless that would take longer than the measurement may. */
    size_t n_items = w.n_heads * w.n_chunks, n_groups = w.n_groups;
    w.n_groups = 1;
    double start = sl_os_seconds();
    sl_pool_run(machine->pool, n_items, fold_item, &w);
    double group_s = sl_os_seconds() - start;
    w.n_groups = n_groups;
    if (group_s * (double)n_groups > seconds_of(machine))
        w.n_groups = max_size(1, min_size(n_groups, (size_t)(seconds_of(machine) / group_s)));
    double runs = runs_per_s(machine, n_items, fold_item, &w, next_part);
    double share = (double)(w.n_queries * w.n_heads) / (double)(shape->n_rows * shape->n_heads);
    *keys_per_s = runs * (double)(w.n_groups * SL_TILE) * share;
    sl_mem_unmap(machine->budget, w.map, w.map_bytes);
    return SL_OK;
}

/* ------------------------------------------------------------------------------------------------------ projections */

enum {
    N_IN = 1024,
    SLICE_OUT = 1024, /* outputs of one product: a matrix of the model */
    FEW_ROWS = 16,    /* below, weights come from memory faster than they can be used again */
    MOST_ROWS = 128   /* that a layer takes through a matrix at once */
};

typedef struct gemm_work {
    const sl_kernels *kernels;
    sl_wtype type;
    size_t n_rows, n_out, first_out, slice_out, panels_per_item;
    size_t matrix_bytes, x_bytes, qrows_bytes, map_bytes;
    uint8_t *map, *packed, *qrows;
    float *x, *out;
} gemm_work;

static void gemm_item(void *arg, size_t item, size_t worker)
{
    (void)worker;
    const gemm_work *w = arg;
    size_t first = item * w->panels_per_item * SL_PANEL;
    const sl_gemm_args args = {
        .packed = w->packed + w->first_out * sl_wtype_row_bytes(w->type, N_IN),
        .n_out = w->slice_out,
        .n_in = N_IN,
        .first_out = first,
        .n = min_size(w->panels_per_item * SL_PANEL, w->slice_out - first),
        .qrows = w->qrows,
        .x = w->x,
        .x_stride = N_IN,
        .n_rows = w->n_rows,
        .out = w->out,
        .out_stride = w->slice_out,
    };
    sl_kernels_gemm(w->kernels, w->type)(&args);
}

static void next_slice(void *arg)
{
    gemm_work *w = arg;
    w->first_out += w->slice_out;
    if (w->first_out + w->slice_out > w->n_out)
        w->first_out = 0;
}

/* A packed panel whose scales are ordinary numbers: random ones would be NaN or denormal. */
static void fill_panel(sl_wtype type, uint8_t *panel, size_t bytes)
{
    uint32_t seed = 1;
    for (size_t i = 0; i < bytes; i++)
        panel[i] = (uint8_t)next_random(&seed);
    size_t step = type == SL_WTYPE_F32 ? 4 : 2; /* the last byte of each number: sign and high exponent of 0.125 */
    uint8_t high = type == SL_WTYPE_F16 ? 0x30 : 0x3e;
    for (size_t at = step - 1; at < bytes && !sl_wtype_is_quantised(type); at += step)
        panel[at] = high;
    const uint16_t scale = 0x2011; /* binary16, about 0.008 */
    size_t block = SL_PANEL * sl_wtype_row_bytes(type, sl_wtype_block_elems(type));
    size_t scales = (sl_wtype_has_minimum(type) ? 2u : 1u) * SL_PANEL * sizeof scale;
    for (size_t end = block; end <= bytes && sl_wtype_is_quantised(type); end += block)
        for (size_t at = end - scales; at < end; at += sizeof scale)
            memcpy(panel + at, &scale, sizeof scale);
}

static void lay_out_gemm(const sl_rates_machine *machine, gemm_work *w)
{
    size_t row = sl_wtype_row_bytes(w->type, N_IN), most = w->n_rows < FEW_ROWS ? 32 * MIB : 4 * MIB;
    w->n_out = max_size(room_for(machine, most) / row / SL_PANEL, 1) * SL_PANEL;
    w->slice_out = min_size(SLICE_OUT, w->n_out);
    w->panels_per_item = w->slice_out / SL_PANEL / (8 * sl_pool_threads(machine->pool)) + 1;
    w->matrix_bytes = pad64(w->n_out * row);
    w->qrows_bytes = w->n_rows * sl_qrow_bytes(N_IN);
    w->x_bytes = pad64(w->n_rows * N_IN * sizeof(float));
    w->map_bytes = w->matrix_bytes + w->qrows_bytes + w->x_bytes + w->n_rows * w->slice_out * sizeof(float);
}

/* One panel, made once and copied: the kernels' time does not depend on the numbers. */
static void fill_gemm(gemm_work *w)
{
    size_t row = sl_wtype_row_bytes(w->type, N_IN), panel = SL_PANEL * row;
    fill_panel(w->type, w->packed, panel);
    for (size_t at = panel; at + panel <= w->n_out * row; at += panel)
        memcpy(w->packed + at, w->packed, panel);
    uint32_t seed = 2;
    for (size_t i = 0; i < w->n_rows * N_IN; i++)
        w->x[i] = (float)next_random(&seed) * 0x1p-23f - 1.0f;
    sl_fpenv saved = sl_fpenv_enter();
    w->kernels->qrow(w->qrows, w->x, N_IN, w->n_rows, N_IN);
    sl_fpenv_leave(saved);
}

sl_status sl_rates_projection(const sl_rates_machine *machine, sl_wtype type, size_t n_rows, double *madds_per_s,
                              sl_err *err)
{
    assert(n_rows > 0);
    *madds_per_s = 0.0;
    gemm_work w = {.kernels = machine->kernels, .type = type, .n_rows = min_size(n_rows, MOST_ROWS)};
    lay_out_gemm(machine, &w);
    sl_status status = sl_mem_map(machine->budget, w.map_bytes, "projection to measure", &w.map, err);
    if (status != SL_OK)
        return status;
    w.packed = w.map;
    w.qrows = w.packed + w.matrix_bytes;
    w.x = (float *)(void *)(w.qrows + w.qrows_bytes);
    w.out = (float *)(void *)((uint8_t *)w.x + w.x_bytes);
    fill_gemm(&w);
    size_t panels = w.slice_out / SL_PANEL, n_items = (panels + w.panels_per_item - 1) / w.panels_per_item;
    sl_pool_run(machine->pool, n_items, gemm_item, &w);
    *madds_per_s = runs_per_s(machine, n_items, gemm_item, &w, next_slice) * (double)(w.n_rows * w.slice_out) *
                   (double)N_IN;
    sl_mem_unmap(machine->budget, w.map, w.map_bytes);
    return SL_OK;
}
