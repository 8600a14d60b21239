/* What a context file takes on its disk, and what making it writes. */
#include <stdlib.h>
#include <string.h>

#include "api/store.h"
#include "platform/os.h"

enum { END_RECORDS = 2 };

/* Whole segments, and of the last one its blocks as far as they are filled. The commit areas count with all their room
 * from the beginning, so that no commit comes on top. */
static uint64_t file_bytes(const sl_geom *geom, uint64_t n_tokens)
{
    const sl_layout layout = sl_layout_of(geom);
    uint64_t bytes = sl_layout_segment_off(&layout, n_tokens / SL_SEGMENT_TOKENS) + END_RECORDS * SL_SECTOR_BYTES;
    uint64_t n_last = n_tokens % SL_SEGMENT_TOKENS;
    if (n_last == 0)
        return bytes;
    for (uint32_t i = 0; i < geom->n_layers; i++)
        bytes += sl_up_sector((n_last + SL_TILE - 1) / SL_TILE * sl_geom_group_bytes(geom, i));
    return bytes + 2 * layout.record_bytes;
}

/* A file system's own blocks for so many bytes: the tables that say where pieces lie (one block of 4 KiB for some 300
 * pieces, of which a layer's block is one or two). */
static uint64_t with_tables(uint64_t bytes)
{
    return bytes + bytes / 2048 + 16 * SL_SECTOR_BYTES;
}

/* Records, twice each, while tokens [from, to) of one segment come in: a commit every `step` of them, on whole tiles;
 * before the first one what a finished file has of the segment, since it will be written over. */
static uint64_t segment_commits(const sl_geom *geom, uint64_t from, uint64_t to, uint64_t step)
{
    const sl_layout layout = sl_layout_of(geom);
    uint64_t bytes = 2 * layout.record_bytes;
    if (from > 0)
        bytes += 2 * sl_up_sector(sl_commit_record_bytes(geom, from));
    for (uint64_t at = (from + step) / SL_TILE * SL_TILE; at < to; at += step)
        bytes += 2 * sl_up_sector(sl_commit_record_bytes(geom, at));
    return to < SL_SEGMENT_TOKENS ? bytes + 2 * sl_up_sector(sl_commit_record_bytes(geom, to)) : bytes;
}

static uint64_t written_bytes(const sl_geom *geom, uint64_t from, uint64_t to, uint64_t step)
{
    if (from >= to)
        return 0;
    uint64_t first = from / SL_SEGMENT_TOKENS, last = to / SL_SEGMENT_TOKENS;
    uint64_t bytes = (to - from) * sl_geom_token_bytes(geom);
    /* once: the beginning or the areas, and at the end the last tiles and their rest of a sector */
    bytes += 2 * sl_layout_of(geom).superblock_bytes + (uint64_t)geom->n_layers * SL_SECTOR_BYTES;
    if (first == last)
        return bytes + segment_commits(geom, from % SL_SEGMENT_TOKENS, to % SL_SEGMENT_TOKENS, step);
    bytes += segment_commits(geom, from % SL_SEGMENT_TOKENS, SL_SEGMENT_TOKENS, step);
    bytes += (last - first - 1) * segment_commits(geom, 0, SL_SEGMENT_TOKENS, step);
    return to % SL_SEGMENT_TOKENS == 0 ? bytes : bytes + segment_commits(geom, 0, to % SL_SEGMENT_TOKENS, step);
}

sl_status sl_store_find_free(const char *path, uint64_t *out, sl_err *err)
{
    char *folder = sl_os_folder_of(path);
    if (!folder)
        return sl_err_set(err, SL_FAILED, "out of memory: %s", path);
    sl_status status = sl_os_disk_free(folder, out, err);
    free(folder);
    return status;
}

sl_status sl_store_get_space(sl_engine *engine, const char *path, const sl_context_options *options, uint64_t n_tokens,
                             sl_store_space *out, sl_err *err)
{
    memset(out, 0, sizeof *out);
    sl_kv_layer *layers = sl_store_layers(engine, err);
    if (!layers)
        return SL_FAILED;
    const sl_geom geom = sl_store_geom(engine, options, layers);
    uint64_t have = options->store ? sl_durable_get(options->store->durable).n_tokens : 0;
    uint64_t step = options->commit_tokens > 0 ? options->commit_tokens : SL_SEGMENT_TOKENS;
    out->file_bytes = with_tables(file_bytes(&geom, n_tokens));
    out->written_bytes = written_bytes(&geom, have, n_tokens, step);
    out->free_bytes = UINT64_MAX;
    sl_mem_free(&engine->budget, layers);
    sl_os_file file;
    if (path && sl_os_look(path, &file))
        out->present_bytes = file.disk_bytes;
    return path ? sl_store_find_free(path, &out->free_bytes, err) : SL_OK;
}
