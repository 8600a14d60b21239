/* Repairing a context file of the public API: what is damaged among its keys and values is computed again from its
 * token ids, part after part, over what lies before. */
#include <inttypes.h>
#include <string.h>

#include "api/plan.h"
#include "api/store.h"
#include "platform/os.h"
#include "store/durable_repair.h"

typedef struct repairing {
    sl_engine *engine;
    const sl_store_repair_options *o;
    sl_repair *repair;
    sl_store store;       /* the file, as a context takes it over */
    sl_kv_layer *layers;  /* [n_layers] of the geometry */
    uint8_t *part;        /* [part_bytes] */
    size_t part_bytes;
    uint64_t done_tokens; /* of the parts before */
    /* the pass under way */
    const sl_repair_work *work;
    size_t window_first, window_rows;
    uint32_t layer;
    bool is_through; /* all layers that are wanted have been computed */
} repairing;

static void give_damage(void *arg, const sl_damage *d, sl_fate fate)
{
    static const sl_store_fate fates[] = {
        [SL_FATE_REPAIRED] = SL_STORE_FATE_REPAIRED,
        [SL_FATE_REPAIRABLE] = SL_STORE_FATE_REPAIRABLE,
        [SL_FATE_LOST] = SL_STORE_FATE_LOST,
    };
    const repairing *r = arg;
    const sl_store_damage damage = {d->what, d->copy, d->layer, d->segment, d->off, d->bytes};
    if (r->o->told)
        r->o->told(r->o->arg, &damage, fates[fate]);
}

static bool is_stopped(void *arg)
{
    const repairing *r = arg;
    return r->o->stop && r->o->stop(r->o->arg);
}

static bool give_bytes(void *arg, uint64_t done_bytes, uint64_t total_bytes)
{
    const repairing *r = arg;
    if (r->o->progress)
        r->o->progress(r->o->arg, false, done_bytes, total_bytes);
    return !is_stopped(arg);
}

/* ---- computing ---- */

/* Asked by the graph before each layer. Behind the last damaged one nothing more is wanted of the last window. */
static bool between_layers(void *arg)
{
    repairing *r = arg;
    uint64_t done = r->done_tokens + r->window_first + r->window_rows * r->layer / r->work->n_layers;
    if (r->o->progress && r->layer <= r->work->n_layers)
        r->o->progress(r->o->arg, true, done, sl_repair_get(r->repair).part_tokens);
    bool is_last = r->window_first + r->window_rows == r->work->n_tokens;
    r->is_through = is_last && r->layer == r->work->n_layers;
    r->layer++;
    return r->is_through || is_stopped(r);
}

static sl_status compute(repairing *r, sl_graph *graph, sl_kv *kv, size_t window_rows, sl_err *err)
{
    const sl_repair_work *work = r->work;
    sl_status status = SL_OK;
    r->is_through = false;
    for (r->window_first = 0; status == SL_OK && r->window_first < work->n_tokens; r->window_first += r->window_rows) {
        size_t left = work->n_tokens - r->window_first;
        r->window_rows = left < window_rows ? left : window_rows;
        r->layer = 0;
        const sl_graph_rows rows = {
            .ids = work->ids + r->window_first,
            .n_rows = r->window_rows,
            .first_pos = work->first_token + r->window_first,
            .will_follow = left > r->window_rows,
            .stop = between_layers,
            .stop_in_layer = is_stopped,
            .arg = r,
        };
        status = sl_graph_pass(graph, kv, &rows, err);
    }
    return status == SL_CANCELLED && r->is_through ? SL_OK : status;
}

static sl_status put_layers(repairing *r, sl_kv *kv, sl_err *err)
{
    sl_status status = SL_OK;
    for (uint32_t layer = 0; status == SL_OK && layer < r->work->n_layers; layer++) {
        if (!sl_repair_wants(r->repair, layer))
            continue;
        status = sl_kv_get_part(kv, layer, r->work->first_token / SL_PART_TOKENS, r->part, err);
        if (status == SL_OK)
            status = sl_repair_put(r->repair, layer, r->part, err);
    }
    return status == SL_OK ? sl_repair_settle(r->repair, err) : status;
}

static sl_context_options context_options(const repairing *r, size_t prompt_tokens)
{
    const sl_durable *durable = r->store.durable;
    const sl_identity *identity = sl_durable_identity(durable);
    sl_context_options options = {
        .cache = sl_durable_geom(durable)->type == SL_KV_TYPE_F16 ? SL_CACHE_F16 : SL_CACHE_Q8_0,
        .kv_dir = r->o->kv_dir,
        .allow_ram_dir = r->o->allow_ram_dir,
        .prompt_tokens = prompt_tokens,
        .window_tokens = r->o->window_tokens,
        .ring_bytes = r->o->ring_bytes,
        .io = r->o->io,
        .force_context = true,
        .store = (sl_store *)(uintptr_t)&r->store,
        .store_chat = (identity->flags & SL_FORMAT_FLAG_CHAT) != 0,
    };
    sl_rope_options_of(identity, &options);
    return options;
}

static sl_status check_ids(const repairing *r, sl_err *err)
{
    for (size_t i = 0; i < r->work->n_tokens; i++)
        if (r->work->ids[i] < 0 || (uint32_t)r->work->ids[i] >= r->engine->hp.n_vocab)
            return sl_err_set(err, SL_DAMAGED, "%s: token %" PRIu64 " has id %" PRId32 ", expected 0 to %" PRIu32,
                              r->o->path, r->work->first_token + i, r->work->ids[i], r->engine->hp.n_vocab - 1);
    return SL_OK;
}

/* The tokens before the part are taken over from the file; its own go into an unnamed one, or stay in memory. */
static sl_status repair_parts(repairing *r, const sl_repair_work *work, sl_err *err)
{
    sl_session_options session;
    sl_plan plan;
    sl_graph *graph = NULL;
    sl_kv *kv = NULL;
    r->work = work;
    const sl_context_options options = context_options(r, work->n_tokens);
    sl_status status = check_ids(r, err);
    if (status == SL_OK)
        status = sl_plan_session(r->engine, &options, r->layers, &session, err);
    if (status == SL_OK)
        status = sl_plan_make(r->engine, &options, &session, &plan, err);
    if (status == SL_OK) {
        const sl_graph_options graph_options = {
            .weights = session.weights,
            .kernels = session.kernels,
            .pool = session.pool,
            .budget = session.budget,
            .geom = session.kv.geom,
            .max_rows = session.window_rows,
            .rope = session.rope,
            .trace = session.kv.trace,
        };
        status = sl_graph_create(&graph_options, &graph, err);
    }
    session.kv.stop = is_stopped;
    session.kv.arg = r;
    if (status == SL_OK)
        status = sl_kv_create(&session.kv, &kv, err);
    if (status == SL_OK)
        status = compute(r, graph, kv, session.window_rows, err);
    if (status == SL_OK)
        status = put_layers(r, kv, err);
    sl_kv_destroy(kv);
    sl_graph_destroy(graph);
    r->done_tokens += status == SL_OK ? work->n_tokens : 0;
    return status;
}

/* ---- all of it ---- */

/* While the lock is waited for, the name may go to another file (sl_store_rename): that one was meant. */
static sl_status open_named(repairing *r, const sl_repair_options *options, sl_err *err)
{
    sl_os_file before;
    bool was_there = sl_os_look(options->path, &before);
    sl_status status = sl_repair_open(options, &r->repair, err);
    if (status != SL_OK || options->dry_run)
        return status;
    if (was_there && sl_store_is_named(options->path, &before))
        return SL_OK;
    return sl_err_set(err, SL_REFUSED, "%s: its name went to another file just now", options->path);
}

static sl_status open_file(repairing *r, sl_err *err)
{
    sl_engine *engine = r->engine;
    const sl_repair_options options = {.path = r->o->path,
                                       .dry_run = r->o->dry_run,
                                       .force_buffered = r->o->io == SL_IO_BUFFERED,
                                       .budget = &engine->budget,
                                       .log = engine->log,
                                       .told = give_damage,
                                       .progress = give_bytes,
                                       .arg = r};
    sl_status status = open_named(r, &options, err);
    if (status != SL_OK)
        return status;
    r->store.engine = engine;
    r->store.durable = sl_repair_durable(r->repair);
    const sl_context_options context = context_options(r, 0);
    status = sl_store_check(engine, &context, err);
    if (status == SL_OK)
        status = sl_mem_new(&engine->budget, engine->hp.n_layers, sizeof *r->layers, "geometry", &r->layers, err);
    if (status != SL_OK)
        return status;
    r->part_bytes = (size_t)sl_up_sector(sl_geom_max_part_bytes(sl_durable_geom(r->store.durable)));
    return sl_mem_map(&engine->budget, r->part_bytes, "part to be repaired", &r->part, err);
}

static sl_status run(repairing *r, sl_store_repaired *out, sl_err *err)
{
    sl_status status = open_file(r, err);
    if (status == SL_OK)
        status = sl_repair_look(r->repair, err);
    sl_repair_work work;
    while (status == SL_OK && sl_repair_next(r->repair, &work))
        status = repair_parts(r, &work, err);
    if (!r->repair)
        return status;
    const sl_repair_result found = sl_repair_get(r->repair);
    *out = (sl_store_repaired){found.n_tokens,   found.intended_tokens, found.is_finished, found.file_bytes,
                               found.n_found,    found.n_repaired,      found.n_lost,      r->done_tokens,
                               found.part_tokens, found.bytes_written, sl_os_peak_rss_bytes()};
    if (status != SL_OK || found.n_found == found.n_repaired)
        return status;
    return sl_err_set(err, SL_DAMAGED, "%s: %" PRIu64 " of %" PRIu64 " damaged places %s", r->o->path,
                      found.n_lost ? found.n_lost : found.n_found, found.n_found,
                      found.n_lost ? "cannot be repaired" : "would be repaired");
}

sl_status sl_store_repair(sl_engine *engine, const sl_store_repair_options *options, sl_store_repaired *out,
                          sl_err *err)
{
    repairing r = {.engine = engine, .o = options};
    if (!options || !options->path || !out)
        return sl_err_set(err, SL_USAGE, "repair: options, a name and room for the result are needed");
    memset(out, 0, sizeof *out);
    if (!engine->weights || engine->options.plan_only)
        return sl_err_set(err, SL_USAGE, "a context file is repaired with a model that is loaded");
    sl_status status = run(&r, out, err);
    sl_mem_unmap(&engine->budget, r.part, r.part ? r.part_bytes : 0);
    sl_mem_free(&engine->budget, r.layers);
    sl_repair_close(r.repair);
    return status;
}
