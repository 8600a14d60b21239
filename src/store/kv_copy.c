/* One context's tokens into another: what is saved of one that goes on. */
#include <inttypes.h>

#include "store/kv_impl.h"

/* A copy under way. */
typedef struct copy_run {
    sl_kv *to, *from;
    uint64_t n_tokens;
    uint8_t *room;
    const sl_durable_watch *watch;
    uint64_t done_bytes, total_bytes;
} copy_run;

/* Of a layer the tokens from `at` to the end of the part that they lie in; moves `at`. */
static sl_status copy_part(const copy_run *c, uint32_t layer, uint64_t *at, sl_err *err)
{
    size_t group_bytes = sl_geom_group_bytes(&c->from->geom, layer);
    uint64_t part = *at / SL_PART_TOKENS, end = (part + 1) * SL_PART_TOKENS;
    uint64_t full = sl_stream_groups(c->from->stream, layer) * SL_TILE;
    end = end < c->n_tokens ? end : c->n_tokens;
    full = full < end ? full : end;
    const uint8_t *groups = NULL;
    sl_status status = SL_OK;
    if (*at < full)
        status = sl_kv_fetch(c->from, layer, part, c->room, &groups, err);
    if (status == SL_OK && *at < full)
        status = sl_writer_append(c->to->writer, layer, groups + *at % SL_PART_TOKENS / SL_TILE * group_bytes,
                                  full - *at, err);
    *at = *at < full ? full : *at;
    uint32_t n_tail = 0;
    const uint8_t *tail = sl_writer_tail(c->from->writer, layer, &n_tail);
    if (status == SL_OK && *at < end)
        status = sl_writer_append(c->to->writer, layer, tail, end - *at, err);
    *at = end;
    return status;
}

static sl_status copy_layer(copy_run *c, uint32_t layer, sl_err *err)
{
    sl_status status = SL_OK;
    uint64_t at = sl_writer_tokens(c->to->writer, layer);
    while (status == SL_OK && at < c->n_tokens) {
        uint64_t before = at;
        status = copy_part(c, layer, &at, err);
        c->done_bytes += (at - before) * (sl_geom_group_bytes(&c->from->geom, layer) / SL_TILE);
        const sl_durable_watch *watch = c->watch;
        if (status == SL_OK && watch && watch->progress && !watch->progress(watch->arg, c->done_bytes, c->total_bytes))
            status = sl_err_set(err, SL_CANCELLED, "cancelled");
    }
    return status;
}

sl_status sl_kv_copy(sl_kv *to, sl_kv *from, uint64_t n_tokens, const sl_durable_watch *watch, sl_err *err)
{
    copy_run c = {.to = to, .from = from, .n_tokens = n_tokens, .watch = watch};
    if (!sl_geom_is_same(&to->geom, &from->geom))
        return sl_err_set(err, SL_USAGE, "a context is copied to one of another geometry");
    for (uint32_t i = 0; i < from->geom.n_layers; i++) {
        uint64_t at = sl_writer_tokens(to->writer, i), stored = sl_writer_tokens(from->writer, i);
        if (stored < n_tokens)
            return sl_err_set(err, SL_USAGE, "layer %" PRIu32 ": %" PRIu64 " tokens wanted, it has %" PRIu64, i,
                              n_tokens, stored);
        c.total_bytes += at < n_tokens ? (n_tokens - at) * (sl_geom_group_bytes(&from->geom, i) / SL_TILE) : 0;
    }
    sl_status status = sl_kv_check_whole(from, err);
    if (status == SL_OK)
        status = sl_kv_check_whole(to, err);
    if (status == SL_OK)
        status = sl_stream_pause(from->stream, &c.room, err);
    for (uint32_t i = 0; status == SL_OK && i < from->geom.n_layers; i++)
        status = copy_layer(&c, i, err);
    return status;
}
