/* A file that begins as another does: whole segments shared or copied. */
#include <errno.h>
#include <inttypes.h>
#include <string.h>

#include "base/hash.h"
#include "store/durable_impl.h"

/* A clone under way. */
typedef struct clone_run {
    sl_durable *to;
    const sl_durable *from;
    uint64_t n_segments;
    const sl_durable_watch *watch;
    sl_durable_cloned *out;
    uint64_t done_bytes, total_bytes;
    bool cannot_share;
    uint8_t *buf; /* [part_room]; NULL until something is copied */
    size_t part_room;
} clone_run;

static sl_status check(const sl_durable *to, const sl_durable *from, uint64_t n_segments, sl_err *err)
{
    const sl_geom *a = &to->superblock.geom, *b = &from->superblock.geom;
    bool is_same = a->type == b->type && a->n_layers == b->n_layers;
    for (uint32_t i = 0; is_same && i < a->n_layers; i++)
        is_same = a->layers[i].n_kv_heads == b->layers[i].n_kv_heads && a->layers[i].head_dim == b->layers[i].head_dim;
    if (!is_same)
        return sl_err_set(err, SL_USAGE, "%s has another geometry than %s", to->path, from->path);
    sl_err why;
    if (sl_identity_compare(&from->superblock.identity, &to->superblock.identity, &why) != SL_OK)
        return sl_err_set(err, SL_USAGE, "%s is not of a kind with %s: %s", to->path, from->path, why.text);
    if (!to->options.for_writing || to->is_finished || to->n_tokens % SL_SEGMENT_TOKENS != 0)
        return sl_err_set(err, SL_USAGE, "%s: %" PRIu64 " tokens, no whole segments to go on from", to->path,
                          to->n_tokens);
    uint64_t n_tokens = n_segments * SL_SEGMENT_TOKENS;
    if (n_segments > from->n_tokens / SL_SEGMENT_TOKENS || n_tokens > to->cap_tokens || to->n_tokens > n_tokens)
        return sl_err_set(err, SL_USAGE, "%s: %" PRIu64 " segments of %s, which has %" PRIu64 " tokens", to->path,
                          n_segments, from->path, from->n_tokens);
    if (memcmp(to->ids, from->ids, (size_t)to->n_tokens * sizeof *to->ids) != 0)
        return sl_err_set(err, SL_USAGE, "%s does not begin as %s does", to->path, from->path);
    return SL_OK;
}

static sl_status tell(clone_run *c, uint64_t bytes, sl_err *err)
{
    c->done_bytes += bytes;
    if (c->watch && c->watch->progress && !c->watch->progress(c->watch->arg, c->done_bytes, c->total_bytes))
        return sl_err_set(err, SL_CANCELLED, "cancelled");
    return SL_OK;
}

/* -EOPNOTSUPP: the segment must be copied. */
static int share(const clone_run *c, uint64_t segment)
{
    const sl_durable *to = c->to;
    if (c->cannot_share || !to->vfs->share)
        return -EOPNOTSUPP;
    return to->vfs->share(to->file, c->from->file, sl_layout_segment_off(&to->layout, segment),
                          to->layout.blocks_bytes);
}

static sl_status copy_part(clone_run *c, uint32_t layer, uint64_t part, uint64_t off, sl_err *err)
{
    sl_durable *to = c->to;
    const sl_durable *from = c->from;
    size_t bytes = sl_geom_part_bytes(&to->superblock.geom, layer);
    sl_status status = sl_vfs_read(from->vfs, from->file, from->path, c->buf, bytes, off, err);
    if (status != SL_OK)
        return status;
    uint64_t found = sl_hash(c->buf, bytes), expected = sl_durable_part(from, layer, part);
    if (found != expected)
        return sl_err_set(err, SL_DAMAGED,
                          "%s: layer %" PRIu32 ", segment %" PRIu64 ", offset %" PRIu64
                          " (%zu bytes): checksum %016" PRIx64 ", expected %016" PRIx64,
                          from->path, layer, part / SL_SEGMENT_PARTS, off, bytes, found, expected);
    status = sl_durable_write(to, c->buf, bytes, off, err);
    int failed = status == SL_OK && !to->is_direct ? to->vfs->drop_cached(to->file, off, bytes) : 0;
    if (!from->is_direct)
        (void)from->vfs->drop_cached(from->file, off, bytes);
    if (failed != 0)
        return sl_err_set_errno(err, SL_FAILED, -failed, "%s: cannot write out %zu bytes at offset %" PRIu64, to->path,
                                bytes, off);
    return status == SL_OK ? tell(c, bytes, err) : status;
}

static sl_status copy_segment(clone_run *c, uint64_t segment, sl_err *err)
{
    const sl_geom *geom = &c->to->superblock.geom;
    sl_status status = SL_OK;
    if (!c->buf) {
        c->part_room = sl_geom_max_part_bytes(geom);
        status = sl_mem_map(c->to->options.budget, c->part_room, "a part that is copied", &c->buf, err);
    }
    uint64_t off = sl_layout_segment_off(&c->to->layout, segment);
    for (uint32_t layer = 0; status == SL_OK && layer < geom->n_layers; layer++) {
        for (uint64_t p = 0; status == SL_OK && p < SL_SEGMENT_PARTS; p++)
            status = copy_part(c, layer, segment * SL_SEGMENT_PARTS + p, off + p * sl_geom_part_bytes(geom, layer),
                               err);
        off += sl_geom_block_bytes(geom, layer);
    }
    return status;
}

static void give_parts(void *arg, uint64_t segment, bool finished, uint64_t *out)
{
    const clone_run *c = arg;
    size_t bytes = (size_t)c->to->superblock.geom.n_layers * SL_SEGMENT_PARTS * sizeof *out;
    (void)finished;
    if (segment < c->n_segments)
        memcpy(out, sl_durable_sums(c->from, segment), bytes);
    else
        memset(out, 0, bytes);
}

/* Segments before `end` survive from now on. */
static sl_status commit(clone_run *c, uint64_t end, sl_err *err)
{
    const sl_durable_source source = {give_parts, NULL, c};
    uint64_t n_tokens = end * SL_SEGMENT_TOKENS, intended = c->to->intended_tokens;
    return sl_durable_commit(c->to, c->from->ids, n_tokens, intended > n_tokens ? intended : n_tokens, false, &source,
                             err);
}

static sl_status clone_segment(clone_run *c, uint64_t segment, sl_err *err)
{
    const sl_layout *layout = &c->to->layout;
    int failed = share(c, segment);
    if (failed == 0) {
        c->out->shared_bytes += layout->blocks_bytes;
        return tell(c, layout->blocks_bytes, err);
    }
    if (failed != -EOPNOTSUPP)
        return sl_err_set_errno(err, SL_FAILED, -failed, "%s: cannot share %" PRIu64 " bytes at offset %" PRIu64
                                " with %s", c->to->path, layout->blocks_bytes,
                                sl_layout_segment_off(layout, segment), c->from->path);
    c->cannot_share = true;
    sl_status status = copy_segment(c, segment, err);
    if (status == SL_OK)
        c->out->copied_bytes += layout->blocks_bytes;
    return status == SL_OK ? commit(c, segment + 1, err) : status;
}

sl_status sl_durable_clone(sl_durable *to, const sl_durable *from, uint64_t n_segments, const sl_durable_watch *watch,
                           sl_durable_cloned *out, sl_err *err)
{
    *out = (sl_durable_cloned){0, 0};
    sl_status status = check(to, from, n_segments, err);
    if (status != SL_OK)
        return status;
    uint64_t first = to->n_tokens / SL_SEGMENT_TOKENS;
    clone_run c = {.to = to, .from = from, .n_segments = n_segments, .watch = watch, .out = out};
    c.total_bytes = (n_segments - first) * to->layout.blocks_bytes;
    for (uint64_t segment = first; status == SL_OK && segment < n_segments; segment++)
        status = clone_segment(&c, segment, err);
    if (status == SL_OK && to->n_tokens < n_segments * SL_SEGMENT_TOKENS)
        status = commit(&c, n_segments, err);
    sl_mem_unmap(to->options.budget, c.buf, c.part_room);
    return status;
}
