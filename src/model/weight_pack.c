/* Weights that were read again: compared with what was loaded, packed, or named. */
#include <inttypes.h>
#include <stdatomic.h>
#include <string.h>

#include "base/hash.h"
#include "model/tensors.h"
#include "model/weight_stream_impl.h"

enum { ITEM_BYTES = 64 << 10 };

static bool name_in(const sl_tensor_wants *wants, const void *owner, const sl_matrix *matrix, char name[64])
{
    for (size_t i = 0; i < wants->n; i++) {
        if ((const char *)owner + wants->items[i].off != (const char *)matrix)
            continue;
        memcpy(name, wants->items[i].name, 64);
        return true;
    }
    return false;
}

static void find_name(const sl_weights *weights, const sl_matrix *matrix, char name[64])
{
    sl_tensor_wants wants;
    sl_tensor_wants_of_model(&weights->hp, &wants);
    bool is_found = name_in(&wants, weights, matrix, name);
    for (uint32_t i = 0; !is_found && i < weights->hp.n_layers; i++) {
        sl_tensor_wants_of_layer(&weights->hp, i, &wants);
        is_found = name_in(&wants, &weights->layers[i], matrix, name);
    }
}

sl_status sl_weight_say_unread(const sl_weights *weights, const sl_matrix *matrix, const sl_err *cause, sl_err *err)
{
    char name[64] = "";
    find_name(weights, matrix, name);
    return sl_err_set(err, SL_FAILED, "tensor %s cannot be read again: %s", name, cause->text);
}

sl_status sl_weight_say_changed(const sl_weights *weights, const sl_matrix *matrix, size_t panel, sl_err *err)
{
    char name[64] = "";
    find_name(weights, matrix, name);
    return sl_err_set(err, SL_DAMAGED,
                      "%s: tensor %s is not what it was when the model was loaded: rows from %zu on, at offset %" PRIu64
                      " (was the file changed?)",
                      sl_gguf_reader_path(weights->stream->reader, matrix->part), name,
                      sl_matrix_panel_row(matrix, panel), sl_matrix_range(matrix, panel, 1).off);
}

/* -------------------------------------------------------------------------------------------- checking and packing */

typedef struct packing {
    const sl_matrix *matrix;
    const uint8_t *raw; /* of the first panel */
    uint8_t *packed;
    size_t first, n, per_item; /* panels */
    atomic_size_t bad; /* the first panel whose bytes are other ones; SIZE_MAX: none */
} packing;

static void note_bad(packing *work, size_t panel)
{
    size_t seen = atomic_load(&work->bad);
    while (panel < seen && !atomic_compare_exchange_weak(&work->bad, &seen, panel))
        continue;
}

static void pack_item(void *arg, size_t item, size_t worker)
{
    (void)worker;
    packing *work = arg;
    const sl_matrix *m = work->matrix;
    const uint64_t origin = sl_matrix_range(m, work->first, 1).off;
    const size_t row = sl_wtype_row_bytes(m->type, m->n_in), end = (item + 1) * work->per_item;
    for (size_t i = item * work->per_item; i < end && i < work->n; i++) {
        const size_t panel = work->first + i;
        const sl_gguf_range range = sl_matrix_range(m, panel, 1);
        const size_t off = (size_t)(range.off - origin);
        if (sl_hash(work->raw + off, range.bytes) != m->sums[panel]) {
            note_bad(work, panel);
            return;
        }
        sl_weight_pack_panel(m->type, work->packed + off, work->raw + off, range.bytes / row, m->n_in);
    }
}

/* Panels [first, + n) of a matrix from raw to packed. pool: NULL: alone. */
sl_status sl_weight_pack(const sl_weights *weights, const sl_held_piece *piece, const uint8_t *raw, uint8_t *packed,
                      sl_pool *pool, sl_err *err)
{
    const sl_matrix *matrix = piece->matrix;
    packing work = {
        .matrix = matrix,
        .raw = raw,
        .packed = packed,
        .first = piece->first,
        .n = piece->n,
        .per_item = ITEM_BYTES / (SL_PANEL * sl_wtype_row_bytes(matrix->type, matrix->n_in)) + 1,
    };
    atomic_init(&work.bad, SIZE_MAX);
    const size_t n_items = (piece->n + work.per_item - 1) / work.per_item;
    if (pool)
        sl_pool_run(pool, n_items, pack_item, &work);
    for (size_t i = 0; !pool && i < n_items; i++)
        pack_item(&work, i, 0);
    const size_t bad = atomic_load(&work.bad);
    return bad == SIZE_MAX ? SL_OK : sl_weight_say_changed(weights, matrix, bad, err);
}
