/* The first tokens of a context file in a file of their own. */
#include <inttypes.h>

#include "api/new_file.h"
#include "api/store.h"

typedef struct fork_run {
    const sl_store_fork_options *o;
    sl_store_forked *out;
    sl_budget budget;
    sl_durable *from;
    sl_new_file to;
    uint64_t n_tokens;
} fork_run;

static sl_status open_source(fork_run *f, sl_err *err)
{
    const sl_durable_options options = {
        .path = f->o->from, .force_buffered = f->o->buffered, .budget = &f->budget};
    sl_status status = sl_durable_open(&options, &f->from, err);
    if (status != SL_OK)
        return status;
    sl_durable_state state = sl_durable_get(f->from);
    f->n_tokens = f->o->n_tokens == SL_STORE_ALL ? state.n_tokens : f->o->n_tokens;
    f->out->from_tokens = state.n_tokens;
    f->out->from_intended_tokens = state.intended_tokens;
    f->out->n_tokens = f->n_tokens;
    if (f->n_tokens == 0 || f->n_tokens > state.n_tokens)
        return sl_err_set(err, SL_REFUSED, "%s: the first %" PRIu64 " tokens were asked for, it has %" PRIu64,
                          f->o->from, f->n_tokens, state.n_tokens);
    return SL_OK;
}

static sl_status create_target(fork_run *f, sl_err *err)
{
    const sl_durable_options options = {.path = f->o->to, .for_writing = true, .name_last = true,
                                        .force_buffered = f->o->buffered, .allow_ram = f->o->allow_ram_dir,
                                        .max_tokens = f->n_tokens, .budget = &f->budget};
    return sl_durable_create(&options, sl_durable_identity(f->from), sl_durable_geom(f->from), &f->to.durable, err);
}

/* Before hours of copying: what will not be shared must find room. */
static sl_status expect_room(const fork_run *f, uint64_t wanted_bytes, sl_err *err)
{
    uint64_t free_bytes = UINT64_MAX;
    sl_status status = sl_store_find_free(f->o->to, &free_bytes, err);
    if (status != SL_OK || free_bytes >= wanted_bytes)
        return status;
    return sl_err_set(err, SL_REFUSED, "%s: %" PRIu64 " bytes are free there, the copy needs %" PRIu64, f->o->to,
                      free_bytes, wanted_bytes);
}

/* Asked with the first bytes of the first segment, which is taken anyway. */
static bool can_share(const fork_run *f)
{
    const sl_vfs *vfs = sl_durable_vfs(f->from);
    return vfs->share && vfs->share(sl_durable_file(f->to.durable), sl_durable_file(f->from),
                                    sl_durable_layout(f->from)->data_off, SL_BLOCK_ALIGN) == 0;
}

/* The first segment tells whether blocks can be shared. */
static sl_status take_segments(fork_run *f, sl_err *err)
{
    const sl_layout *layout = sl_durable_layout(f->from);
    uint64_t n_segments = f->n_tokens / SL_SEGMENT_TOKENS;
    uint64_t tail_bytes = f->n_tokens % SL_SEGMENT_TOKENS * sl_geom_token_bytes(sl_durable_geom(f->from));
    const sl_durable_watch watch = {sl_new_file_step, &f->to};
    const bool shares = n_segments > 0 && can_share(f);
    sl_status status = expect_room(f, (shares ? 0 : n_segments * layout->blocks_bytes) + tail_bytes, err);
    f->to.total_bytes = n_segments * layout->blocks_bytes + tail_bytes;
    for (uint64_t end = n_segments > 1 ? 1 : n_segments; status == SL_OK; end = n_segments) {
        sl_durable_cloned cloned;
        status = sl_durable_clone(f->to.durable, f->from, end, &watch, &cloned, err);
        f->out->shared_bytes += cloned.shared_bytes;
        f->out->copied_bytes += cloned.copied_bytes;
        f->to.before_bytes = f->out->shared_bytes + f->out->copied_bytes;
        if (status == SL_OK && end <= 1)
            status = expect_room(f, (f->out->shared_bytes > 0 ? 0 : (n_segments - end) * layout->blocks_bytes) +
                                        tail_bytes, err);
        if (end == n_segments)
            break;
    }
    return status;
}

static sl_status take_rest(fork_run *f, sl_err *err)
{
    const sl_durable_watch watch = {sl_new_file_step, &f->to};
    uint64_t first = sl_durable_get(f->to.durable).n_tokens;
    sl_status status = sl_new_file_open_kv(&f->to, f->n_tokens, &f->budget, err);
    if (status == SL_OK)
        status = sl_kv_append_stored(f->to.kv, f->from, f->n_tokens, &watch, err);
    if (status == SL_OK)
        f->out->copied_bytes += (f->n_tokens - first) * sl_geom_token_bytes(sl_durable_geom(f->from));
    return status == SL_OK ? sl_new_file_end(&f->to, sl_durable_ids(f->from), f->n_tokens, err) : status;
}

sl_status sl_store_fork(const sl_store_fork_options *options, sl_store_forked *out, sl_err *err)
{
    if (!options || !options->from || !options->to || !out)
        return sl_err_set(err, SL_USAGE, "fork: options, both names and room for the result are needed");
    fork_run f = {.o = options, .out = out, .to = {.progress = options->progress, .arg = options->arg}};
    *out = (sl_store_forked){0};
    sl_budget_init(&f.budget, UINT64_MAX);
    sl_status status = open_source(&f, err);
    if (status == SL_OK)
        status = sl_new_file_expect_name(options->to, err);
    if (status == SL_OK)
        status = create_target(&f, err);
    if (status == SL_OK)
        status = take_segments(&f, err);
    if (status == SL_OK)
        status = take_rest(&f, err);
    if (status == SL_OK) {
        sl_kv_stats stats;
        sl_kv_get_stats(f.to.kv, &stats);
        out->bytes_written = stats.bytes_written;
    }
    sl_new_file_close(&f.to);
    sl_durable_close(f.from);
    sl_budget_deinit(&f.budget);
    return status;
}
