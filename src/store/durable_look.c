/* What an open context file has. */
#include "store/durable_impl.h"

sl_durable_state sl_durable_get(const sl_durable *d)
{
    return (sl_durable_state){
        .n_tokens = d->n_tokens,
        .intended_tokens = d->intended_tokens,
        .is_finished = d->is_finished,
        .is_for_writing = d->options.for_writing,
        .max_tokens = d->cap_tokens,
        .n_commits = d->n_commits,
        .note = d->note[0] ? d->note : NULL,
    };
}

const sl_identity *sl_durable_identity(const sl_durable *d)
{
    return &d->superblock.identity;
}

const sl_geom *sl_durable_geom(const sl_durable *d)
{
    return &d->superblock.geom;
}

const sl_layout *sl_durable_layout(const sl_durable *d)
{
    return &d->layout;
}

const int32_t *sl_durable_ids(const sl_durable *d)
{
    return d->ids;
}

sl_file *sl_durable_file(const sl_durable *d)
{
    return d->file;
}

const sl_vfs *sl_durable_vfs(const sl_durable *d)
{
    return d->vfs;
}

bool sl_durable_is_direct(const sl_durable *d)
{
    return d->is_direct;
}

const char *sl_durable_name(const sl_durable *d)
{
    return d->path;
}

uint64_t sl_durable_part(const sl_durable *d, uint32_t layer, uint64_t part)
{
    return sl_durable_sums(d, part / SL_SEGMENT_PARTS)[layer * SL_SEGMENT_PARTS + part % SL_SEGMENT_PARTS];
}

const uint8_t *sl_durable_tail(const sl_durable *d, uint32_t layer)
{
    if (!d->tails)
        return NULL;
    const uint8_t *at = d->tails;
    const sl_geom *geom = &d->superblock.geom;
    for (uint32_t i = 0; i < layer; i++)
        at += sl_commit_piece_bytes(geom, i, d->n_tokens) +
              (d->n_tokens % SL_TILE != 0 ? sl_geom_group_bytes(geom, i) : 0);
    return at;
}

uint64_t sl_durable_bytes_written(const sl_durable *d)
{
    return d->bytes_written;
}
