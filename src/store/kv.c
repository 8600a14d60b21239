/* The context: puts parts, file, stream and writer together. */
#include "store/kv.h"

#include <inttypes.h>
#include <string.h>

#include "platform/os.h"
#include "store/kv_impl.h"

enum { DEFAULT_READ_BYTES = 1 << 20, DEFAULT_IN_FLIGHT_BYTES = 32 << 20 };

uint64_t sl_kv_table_bytes(const sl_geom *geom, uint64_t max_tokens)
{
    /* the object, its copies, the probe's buffer; what a file is loaded through, and its checksum */
    enum { SMALL = 3 * SL_MEM_ALIGN + (56 << 10) };
    return sl_parts_table_bytes(geom, max_tokens) + sl_stream_table_bytes(geom) + sl_writer_table_bytes(geom) +
           sl_kv_load_bytes(geom) + geom->n_layers * sizeof(sl_kv_layer) + SMALL;
}

static sl_status check_options(const sl_kv_options *options, sl_err *err)
{
    sl_status status = sl_geom_check(&options->geom, err);
    if (status != SL_OK)
        return status;
    uint64_t segments = options->max_tokens / SL_SEGMENT_TOKENS + 1;
    if (segments > (uint64_t)INT64_MAX / sl_geom_segment_bytes(&options->geom))
        return sl_err_set(err, SL_USAGE, "%" PRIu64 " tokens are more than a file can hold", options->max_tokens);
    bool is_walked = options->n_slots > 0 || !options->keep;
    if (is_walked && (options->n_slots < 2 || options->n_slots > INT32_MAX))
        return sl_err_set(err, SL_USAGE, "%zu ring slots, expected 2 or more", options->n_slots);
    if (options->read_bytes % SL_SECTOR_BYTES != 0)
        return sl_err_set(err, SL_USAGE, "reads of %zu bytes, expected a multiple of %u", options->read_bytes,
                          SL_SECTOR_BYTES);
    if (!options->dir)
        return sl_err_set(err, SL_USAGE, "no directory for the cache file");
    if (options->keep && options->slide.drops)
        return sl_err_set(err, SL_USAGE, "a context that is kept keeps all of its sliding layers");
    if (options->durable_tokens > 0 && (!options->durable || options->keep))
        return sl_err_set(err, SL_USAGE, "a part of a context can only be read");
    if (options->durable && options->durable_tokens > sl_durable_get(options->durable).n_tokens)
        return sl_err_set(err, SL_USAGE, "%s: %" PRIu64 " tokens wanted, it holds %" PRIu64,
                          sl_durable_name(options->durable), options->durable_tokens,
                          sl_durable_get(options->durable).n_tokens);
    return SL_OK;
}

static sl_status copy_options(sl_kv *kv, const sl_kv_options *options, sl_err *err)
{
    const sl_geom *geom = &options->geom;
    size_t dir_bytes = strlen(options->dir) + 1;
    sl_status status = sl_mem_new(kv->budget, geom->n_layers, sizeof *kv->layers, "layer table", &kv->layers, err);
    if (status == SL_OK)
        status = sl_mem_new(kv->budget, dir_bytes, 1, "directory name", &kv->dir, err);
    if (status != SL_OK)
        return status;
    memcpy(kv->layers, geom->layers, geom->n_layers * sizeof *kv->layers);
    memcpy(kv->dir, options->dir, dir_bytes);
    kv->geom = *geom;
    kv->geom.layers = kv->layers;
    return SL_OK;
}

static sl_status create_stream(sl_kv *kv, const sl_kv_options *options, sl_err *err)
{
    size_t least = sl_geom_max_part_bytes(&kv->geom);
    size_t slot_bytes = options->slot_bytes > least ? options->slot_bytes : least;
    slot_bytes = slot_bytes / SL_SECTOR_BYTES * SL_SECTOR_BYTES;
    if (options->n_slots > 0 && slot_bytes > SIZE_MAX / 4 / options->n_slots)
        return sl_err_set(err, SL_USAGE, "%zu ring slots of %zu bytes are too many", options->n_slots, slot_bytes);
    sl_stream_options stream = {
        .geom = &kv->geom,
        .parts = &kv->parts,
        .file = &kv->file,
        .n_slots = options->n_slots,
        .slot_bytes = slot_bytes,
        .read_bytes = options->read_bytes ? options->read_bytes : DEFAULT_READ_BYTES,
        .in_flight_bytes = options->in_flight_bytes ? options->in_flight_bytes : DEFAULT_IN_FLIGHT_BYTES,
        .read_rate = options->read_rate,
        .io_engine = options->io_engine,
        .trace = options->trace,
        .log = options->log,
        .stop = options->stop,
        .arg = options->arg,
        .has_ring = options->n_slots > 0 && (kv->durable || kv->parts.chosen_bytes < kv->parts.total_bytes),
        .budget = kv->budget,
    };
    return sl_stream_create(&stream, &kv->stream, err);
}

static sl_status create_members(sl_kv *kv, const sl_kv_options *options, sl_err *err)
{
    sl_status status = copy_options(kv, options, err);
    if (status != SL_OK)
        return status;
    sl_kvfile_options file = {
        .vfs = options->vfs ? options->vfs : sl_vfs_system(),
        .dir = kv->dir,
        .log = options->log,
        .trace = options->trace,
        .budget = kv->budget,
        .allow_ram_dir = options->allow_ram_dir,
        .force_buffered = options->force_buffered,
    };
    if (kv->durable) {
        file.base = sl_durable_file(kv->durable);
        file.base_name = sl_durable_name(kv->durable);
        file.base_is_direct = sl_durable_is_direct(kv->durable);
        file.over_base = !kv->keeps;
    }
    status = sl_kvfile_init(&kv->file, &file, err);
    if (status == SL_OK)
        status = sl_parts_init(&kv->parts, &kv->geom, options->max_tokens, &options->slide, kv->budget, err);
    kv->parts.answer_from = options->answer_from;
    if (status == SL_OK && kv->durable) {
        const sl_layout *layout = sl_durable_layout(kv->durable);
        sl_parts_lay(&kv->parts, layout->data_off, layout->stride);
        kv->parts.is_over = !kv->keeps;
        if (!kv->keeps)
            kv->parts.own_part = kv->base_tokens / SL_PART_TOKENS;
    }
    if (status == SL_OK)
        status = sl_parts_raise(&kv->parts, options->resident_bytes, err);
    if (status == SL_OK)
        status = create_stream(kv, options, err);
    sl_writer_options writer = {&kv->geom,           &kv->parts, &kv->file, kv->stream,
                                options->max_tokens, kv->keeps,  kv->budget};
    if (status == SL_OK)
        status = sl_writer_create(&writer, &kv->writer, err);
    if (status == SL_OK && kv->durable)
        status = sl_kv_load(kv, err);
    return status;
}

sl_status sl_kv_create(const sl_kv_options *options, sl_kv **out, sl_err *err)
{
    *out = NULL;
    sl_status status = check_options(options, err);
    sl_kv *kv = NULL;
    if (status == SL_OK)
        status = sl_mem_new(options->budget, 1, sizeof *kv, "context", &kv, err);
    if (status != SL_OK)
        return status;
    kv->budget = options->budget;
    kv->durable = options->durable;
    if (kv->durable)
        kv->base_tokens =
            options->durable_tokens > 0 ? options->durable_tokens : sl_durable_get(kv->durable).n_tokens;
    kv->keeps = options->durable && options->keep;
    kv->is_never_walked = options->n_slots == 0;
    kv->file.budget = options->budget;
    kv->parts.budget = options->budget;
    status = create_members(kv, options, err);
    if (status != SL_OK) {
        sl_kv_destroy(kv);
        return status;
    }
    *out = kv;
    return SL_OK;
}

void sl_kv_destroy(sl_kv *kv)
{
    if (!kv)
        return;
    /* The stream first: its thread uses the others. */
    sl_stream_destroy(kv->stream);
    sl_writer_destroy(kv->writer);
    sl_parts_deinit(&kv->parts);
    sl_kvfile_deinit(&kv->file);
    sl_mem_free(kv->budget, kv->dir);
    sl_mem_free(kv->budget, kv->layers);
    sl_mem_free(kv->budget, kv);
}

static sl_status check_layer(const sl_kv *kv, uint32_t layer, sl_err *err)
{
    if (layer < kv->geom.n_layers)
        return SL_OK;
    return sl_err_set(err, SL_USAGE, "layer %" PRIu32 " of %" PRIu32, layer, kv->geom.n_layers);
}

sl_status sl_kv_pass_begin(sl_kv *kv, bool will_follow, sl_err *err)
{
    sl_status status = sl_kv_check_whole(kv, err);
    if (status == SL_OK && kv->is_never_walked)
        status = sl_err_set(err, SL_USAGE, "%s: a pass over a context without a ring", kv->file.name);
    return status == SL_OK ? sl_stream_begin(kv->stream, will_follow, err) : status;
}

sl_status sl_kv_next(sl_kv *kv, uint32_t layer, sl_kv_part *part, bool *found, sl_err *err)
{
    *found = false;
    sl_status status = check_layer(kv, layer, err);
    return status == SL_OK ? sl_stream_next(kv->stream, layer, part, found, err) : status;
}

bool sl_kv_is_ready(sl_kv *kv, uint32_t layer)
{
    return layer >= kv->geom.n_layers || sl_stream_is_ready(kv->stream, layer);
}

void sl_kv_release(sl_kv *kv, const sl_kv_part *part)
{
    sl_stream_release(kv->stream, part);
}

const uint8_t *sl_kv_tail(const sl_kv *kv, uint32_t layer, uint32_t *n_tokens)
{
    return sl_writer_tail(kv->writer, layer, n_tokens);
}

sl_status sl_kv_append(sl_kv *kv, uint32_t layer, const uint8_t *groups, uint64_t n_new, sl_err *err)
{
    sl_status status = check_layer(kv, layer, err);
    if (status == SL_OK)
        status = sl_kv_check_whole(kv, err);
    const uint64_t n_before = sl_kv_tokens(kv, layer);
    if (status == SL_OK)
        status = sl_writer_append(kv->writer, layer, groups, n_new, err);
    /* What failed may have begun to take the places of what rows still see. */
    if (status != SL_OK && status != SL_USAGE && !sl_kv_has_window(kv, layer, n_before))
        kv->is_lost = true;
    return status;
}

sl_status sl_kv_pass_end(sl_kv *kv, sl_err *err)
{
    return sl_stream_end(kv->stream, err);
}

uint64_t sl_kv_tokens(const sl_kv *kv, uint32_t layer)
{
    return sl_writer_tokens(kv->writer, layer);
}

uint64_t sl_kv_base_tokens(const sl_kv *kv)
{
    return kv->base_tokens;
}

sl_status sl_kv_set_resident(sl_kv *kv, uint64_t resident_bytes, sl_err *err)
{
    return sl_stream_raise(kv->stream, resident_bytes, err);
}

sl_status sl_kv_set_rehearsal(sl_kv *kv, bool on, sl_err *err)
{
    return sl_stream_rehearse(kv->stream, on, err);
}

double sl_kv_seconds(void)
{
    return sl_os_seconds();
}

void sl_kv_fill_ring(sl_kv *kv, const uint8_t *pattern, size_t bytes)
{
    sl_stream_fill_ring(kv->stream, pattern, bytes);
}

void sl_kv_get_stats(const sl_kv *kv, sl_kv_stats *out)
{
    memset(out, 0, sizeof *out);
    sl_stream_get_stats(kv->stream, out);
    out->bytes_written = kv->file.bytes_written + (kv->keeps ? sl_durable_bytes_written(kv->durable) : 0);
    out->write_s = kv->file.write_s;
    out->io_mode = sl_kvfile_mode(&kv->file);
    out->page_cache_bytes = kv->file.file ? kv->file.vfs->cached_bytes(kv->file.file) : 0;
}
