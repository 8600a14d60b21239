#include "api/plan.h"

#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "api/draft_model.h"
#include "api/drafters.h"
#include "api/measure.h"
#include "api/store.h"
#include "decode/stops.h"
#include "platform/os.h"
#include "platform/vfs.h"

enum {
    MIB = 1 << 20,
    N_SLOTS = 2,
    MAX_RING_BYTES = 256 << 20,
    RING_SHARE = 6,      /* of what is left for a context, the ring takes one part in so many, */
    MOST_RING_SHARE = 4, /* or, to hold all reads in flight, one part in so many at most */
    IN_FLIGHT_BYTES = 32 << 20, /* where nothing is known of the disk */
    TALK_WINDOW_SHARE = 4, /* of what is left where feeds and answers alternate, the window takes one part in so many */
    SLACK_BYTES = 64 << 10, /* alignment of a handful of mappings */
    NOISE_BYTES = 512 << 10, /* by which the program's own resident set differs from run to run */
    COMMIT_SECONDS = 60,
    LIST_GROWTH = 3 /* a list of tokens that doubles holds at most so many times its length, old and new */
};

static const uint64_t probe_from_bytes = UINT64_C(1) << 30; /* of the cache on flash: two seconds are then little */

static uint64_t min_u64(uint64_t a, uint64_t b)
{
    return a < b ? a : b;
}

static uint64_t max_u64(uint64_t a, uint64_t b)
{
    return a > b ? a : b;
}

static uint64_t less(uint64_t a, uint64_t b)
{
    return a > b ? a - b : 0;
}

static double mib(uint64_t bytes)
{
    return (double)bytes / (double)MIB;
}

/* -------------------------------------------------------------------------------------------------------- options */

static sl_status check_options(const sl_context_options *o, sl_err *err)
{
    enum { MAX_WINDOW = 1 << 20 };
    if (o->window_tokens % SL_TILE != 0 || o->window_tokens > MAX_WINDOW)
        return sl_err_set(err, SL_USAGE, "window is %zu tokens, expected a multiple of %d up to %d", o->window_tokens,
                          SL_TILE, MAX_WINDOW);
    if (o->cache != SL_CACHE_Q8_0 && o->cache != SL_CACHE_F16)
        return sl_err_set(err, SL_USAGE, "cache type is %d, expected SL_CACHE_Q8_0 or SL_CACHE_F16", (int)o->cache);
    if ((unsigned)o->io > SL_IO_BUFFERED)
        return sl_err_set(err, SL_USAGE, "io is %d, expected SL_IO_AUTO to SL_IO_BUFFERED", (int)o->io);
    if (o->max_drafts > 255)
        return sl_err_set(err, SL_USAGE, "drafts are %zu, expected 0 to 255", o->max_drafts);
    if (!(o->commit_seconds >= 0.0 && o->commit_seconds <= 1e6))
        return sl_err_set(err, SL_USAGE, "%g seconds between commits, expected 0 to 1000000", o->commit_seconds);
    if (o->keep && !o->store)
        return sl_err_set(err, SL_USAGE, "a context is kept in a file, and there is none");
    if (o->keep && (o->talk || o->store_tokens > 0))
        return sl_err_set(err, SL_USAGE, "a context that is kept in its file takes all of it and is not taken back");
    size_t all = o->prompt_tokens + o->predict_tokens;
    if (all < o->prompt_tokens || all > (size_t)1 << 40)
        return sl_err_set(err, SL_USAGE, "%zu prompt tokens and %zu more are beyond what can be counted",
                          o->prompt_tokens, o->predict_tokens);
    return SL_OK;
}

/* That the context starts with. */
static size_t stored_tokens(const sl_context_options *o)
{
    if (!o->store)
        return 0;
    return o->store_tokens > 0 ? o->store_tokens : (size_t)sl_durable_get(o->store->durable).n_tokens;
}

/* Whether feeds follow an answer: then windows and bursts share one piece of memory to the end. */
static bool talks(const sl_context_options *o)
{
    return o->talk || (o->keep && o->predict_tokens > 0);
}

/* Tokens of the context: all that was asked for, or what the trained context leaves of the answer; of a talk, which is
 * fed as it goes, what it leaves of all that may come. */
static sl_status choose_context(const sl_engine *engine, const sl_context_options *o, size_t *n_context, sl_err *err)
{
    const size_t trained = (size_t)sl_rope_trained_tokens(engine, o);
    size_t fed = stored_tokens(o) + o->prompt_tokens, all = fed + o->predict_tokens;
    bool is_free = o->force_context || engine->options.plan_only;
    *n_context = is_free || all <= trained ? all : trained;
    if (o->talk)
        fed = stored_tokens(o) + 1;
    if (fed <= *n_context)
        return sl_rope_check_length(engine, o, n_context, fed, err);
    return sl_err_set(err, SL_REFUSED,
                      "the prompt has %zu tokens, the model was trained for %zu (--rope-scale stretches positions, "
                      "--force-context goes on regardless)",
                      fed, *n_context);
}

static const char *kv_dir(const sl_context_options *options)
{
    if (options->kv_dir)
        return options->kv_dir;
    const char *from_env = getenv("SLUICE_KV_DIR");
    return from_env && *from_env ? from_env : "/var/tmp";
}

sl_status sl_plan_session(sl_engine *engine, const sl_context_options *o, sl_kv_layer *layers, sl_session_options *out,
                          sl_err *err)
{
    size_t n_context = 0;
    sl_status status = check_options(o, err);
    if (status == SL_OK)
        status = sl_rope_check(engine, o, err);
    if (status == SL_OK)
        status = sl_drafters_check(engine, o, err);
    if (status == SL_OK && o->store)
        status = sl_store_check(engine, o, err);
    if (status == SL_OK)
        status = choose_context(engine, o, &n_context, err);
    if (status == SL_OK && o->keep)
        status = sl_store_expect_room(o->store, n_context, err);
    if (status != SL_OK)
        return status;
    const unsigned drafters = sl_drafters_wanted(engine, o, n_context);
    for (uint32_t i = 0; i < engine->hp.n_layers; i++)
        layers[i] = sl_hparams_kv_layer(&engine->hp, i);
    *out = (sl_session_options){
        .weights = engine->weights,
        .kernels = &engine->kernels,
        .pool = engine->pool,
        .budget = &engine->budget,
        .kv = {.geom = {o->cache == SL_CACHE_F16 ? SL_KV_TYPE_F16 : SL_KV_TYPE_Q8_0, engine->hp.n_layers, layers},
               .dir = kv_dir(o),
               .allow_ram_dir = o->allow_ram_dir,
               .force_buffered = o->io == SL_IO_BUFFERED,
               .max_tokens = n_context,
               .read_rate = o->read_rate,
               .io_engine = sl_engine_io_of(o->io),
               .durable = o->store ? o->store->durable : NULL,
               .durable_tokens = o->store_tokens,
               .keep = o->keep,
               .trace = engine->trace,
               .budget = &engine->budget,
               .log = engine->log},
        .max_tokens = n_context,
        .max_drafts = o->max_drafts,
        .trees = o->max_drafts > 0 && !o->no_trees,
        .rope = sl_engine_rope(engine, o),
        .commit_s = o->commit_seconds > 0.0 ? o->commit_seconds : COMMIT_SECONDS,
        .commit_tokens = o->commit_tokens > 0 ? o->commit_tokens : SL_SEGMENT_TOKENS,
        .will_decode = o->predict_tokens > 0,
        .talks = talks(o),
        .ngram = (drafters & SL_DRAFT_WITH_NGRAM) != 0,
        .hot_tokens = drafters & SL_DRAFT_WITH_SELF ? sl_drafters_hot_tokens(o, n_context) : 0,
        .stop = o->stop,
        .arg = o->arg,
    };
    return sl_geom_check(&out->kv.geom, err);
}

/* --------------------------------------------------------------------------------------------------------- memory */

static uint64_t bytes_with_window(sl_session_options *session, size_t rows)
{
    session->window_rows = rows;
    return sl_session_bytes(session);
}

/* The largest window that fits `room` and of which a whole number makes a segment: then windows end on segments. */
static size_t choose_window(sl_session_options *session, size_t prompt_tokens, uint64_t room)
{
    enum { TALK_ROWS = 1024 }; /* what a message has at most, as a rule */
    if (session->talks && prompt_tokens > TALK_ROWS)
        prompt_tokens = TALK_ROWS;
    size_t most = (prompt_tokens + SL_TILE - 1) / SL_TILE * SL_TILE;
    for (size_t per_segment = 1; per_segment <= SL_SEGMENT_TOKENS / SL_TILE; per_segment++) {
        size_t rows = (SL_SEGMENT_TOKENS / SL_TILE + per_segment - 1) / per_segment * SL_TILE;
        if (rows > most)
            rows = most;
        if (bytes_with_window(session, rows) <= room)
            return rows;
    }
    return SL_TILE;
}

/* What the window leaves to resident parts when the answer begins: a little more where even the smallest window takes
 * more than a burst. */
static uint64_t window_leaves(const sl_session_options *session)
{
    if (!session->will_decode || session->talks)
        return 0;
    sl_session_options burst = *session;
    burst.window_rows = SL_TILE;
    return less(sl_session_bytes(session), sl_session_bytes(&burst));
}

static sl_status refuse(const sl_plan *plan, sl_err *err)
{
    char draft[48] = "";
    if (plan->draft_bytes > 0)
        snprintf(draft, sizeof draft, ", draft model %.1f", mib(plan->draft_bytes));
    return sl_err_set(err, SL_REFUSED,
                      "memory budget of %.1f MiB is too small, %" PRIu64 "M would do: program %.1f MiB, weights %.1f, "
                      "tables %.1f, ring %.1f, smallest window and burst %.1f%s",
                      mib(plan->ram_bytes), (plan->needed_bytes + NOISE_BYTES + MIB - 1) / MIB,
                      mib(plan->program_bytes), mib(plan->weight_bytes), mib(plan->table_bytes), mib(plan->ring_bytes),
                      mib(plan->window_bytes), draft);
}

/* Ring size: what the caller asked for, else a share of the room, and where the budget allows what holds all reads in
 * flight beside the parts at work; never more than the cache itself needs. */
static sl_status choose_ring(const sl_context_options *options, const sl_geom *geom, uint64_t room, uint64_t kv_bytes,
                             sl_session_options *session, sl_err *err)
{
    uint64_t part = sl_geom_max_part_bytes(geom), ring = options->ring_bytes;
    if (ring && ring < N_SLOTS * part)
        return sl_err_set(err, SL_REFUSED, "ring of %" PRIu64 " bytes is too small: two parts of %" PRIu64
                          " bytes are the least", ring, part);
    if (!ring) {
        uint64_t flying = session->kv.in_flight_bytes ? session->kv.in_flight_bytes : IN_FLIGHT_BYTES;
        uint64_t wanted = flying + max_u64(flying / 2, 2 * part);
        ring = max_u64(min_u64(room / RING_SHARE, MAX_RING_BYTES), min_u64(room / MOST_RING_SHARE, wanted));
        ring = min_u64(ring, max_u64(kv_bytes, N_SLOTS * part));
    }
    session->kv.n_slots = N_SLOTS;
    session->kv.slot_bytes = (size_t)(max_u64(ring / N_SLOTS, part) / SL_SECTOR_BYTES * SL_SECTOR_BYTES);
    return SL_OK;
}

/* What a message takes before it is fed: its text, copied, and the list of its tokens. */
static uint64_t message_bytes(size_t n_tokens)
{
    enum { TEXT_BYTES = 16, MOST_TEXT_BYTES = 256 << 10 }; /* of a token; of one that is typed */
    uint64_t text = min_u64((uint64_t)n_tokens * TEXT_BYTES, MOST_TEXT_BYTES);
    return text + (uint64_t)n_tokens * LIST_GROWTH * sizeof(int32_t);
}

static uint64_t context_tables(const sl_context_options *options, const sl_session_options *session)
{
    /* never at once */
    uint64_t save = options->talk ? sl_store_save_bytes(&session->kv.geom, session->max_tokens) : 0;
    uint64_t message = options->talk ? message_bytes(options->prompt_tokens) : 0;
    return sl_kv_table_bytes(&session->kv.geom, session->max_tokens) +
           sl_sampler_bytes(session->weights->hp.n_vocab) + sl_stops_bytes() + SLACK_BYTES +
           options->score_best * (sizeof(int32_t) + sizeof(float)) + max_u64(save, message);
}

/* SL_DRAFT_WITH_*: those that the session will have. */
static unsigned drafters_of(const sl_engine *engine, const sl_context_options *options,
                            const sl_session_options *session)
{
    if (session->max_drafts == 0)
        return 0;
    const unsigned wanted = sl_drafters_wanted(engine, options, session->max_tokens);
    return session->hot_tokens > 0 ? wanted : wanted & ~(unsigned)SL_DRAFT_WITH_SELF;
}

/* What is fixed before any choice; the plan then holds the smallest of everything. */
static void start_plan(sl_engine *engine, const sl_context_options *options, sl_session_options *session,
                       sl_plan *plan)
{
    const sl_geom *geom = &session->kv.geom;
    uint64_t limit = 0, used = 0;
    sl_engine_memory(engine, &limit, &used);
    memset(plan, 0, sizeof *plan);
    plan->ram_bytes = engine->ram_bytes;
    plan->program_bytes = engine->program_bytes;
    plan->weight_bytes = engine->work.weight_bytes;
    plan->kv_token_bytes = sl_geom_token_bytes(geom);
    plan->kv_bytes = session->max_tokens * plan->kv_token_bytes;
    plan->max_tokens = session->max_tokens;
    plan->n_slots = N_SLOTS;
    plan->max_drafts = session->max_drafts;
    plan->drafters = drafters_of(engine, options, session);
    plan->hot_tokens = plan->drafters & SL_DRAFT_WITH_SELF ? session->hot_tokens : 0;
    plan->draft_bytes = sl_draft_model_bytes(engine) +
                        sl_drafters_bytes(engine, plan->drafters, session->max_tokens);
    plan->table_bytes = used - plan->weight_bytes - sl_draft_model_bytes(engine) + context_tables(options, session);
    plan->window_tokens = options->window_tokens ? options->window_tokens : SL_TILE;
    plan->window_bytes = bytes_with_window(session, plan->window_tokens);
    plan->ring_bytes = max_u64(N_SLOTS * sl_geom_max_part_bytes(geom),
                               options->ring_bytes / N_SLOTS / SL_SECTOR_BYTES * SL_SECTOR_BYTES * N_SLOTS);
    plan->needed_bytes = plan->program_bytes + plan->weight_bytes + plan->draft_bytes + plan->table_bytes +
                         plan->ring_bytes + plan->window_bytes;
    plan->needed_bytes = max_u64(plan->needed_bytes, engine->load_bytes);
}

/* What the session takes for the hot set and what goes with it. */
static uint64_t hot_bytes(const sl_session_options *session)
{
    sl_session_options without = *session;
    without.hot_tokens = 0;
    return sl_session_bytes(session) - sl_session_bytes(&without);
}

/* The plan of the smallest of everything, with drafts as memory allows: of what nobody asked for in numbers, a hot set
 * takes one part in so many of the room and only where the cache will not stay in memory, and drafts are fewer rather
 * than that the context is refused. */
static void fit_drafts(sl_engine *engine, const sl_context_options *options, sl_session_options *session,
                       sl_plan *plan)
{
    enum { HOT_SHARE = 8, LEAST_HOT = 512 };
    const bool is_hot_chosen = options->hot_tokens == 0, is_self_chosen = options->drafters == 0;
    start_plan(engine, options, session, plan);
    while (is_hot_chosen && session->hot_tokens > 0) {
        const uint64_t hot = hot_bytes(session), room = less(plan->ram_bytes + hot, plan->needed_bytes);
        const bool is_idle = is_self_chosen && plan->kv_bytes <= room;
        if (!is_idle && hot <= room / HOT_SHARE)
            break;
        if (is_idle || (is_self_chosen && session->hot_tokens / 2 < LEAST_HOT))
            session->hot_tokens = 0;
        else if (session->hot_tokens / 2 < SL_TILE)
            break;
        else
            session->hot_tokens /= 2;
        start_plan(engine, options, session, plan);
    }
    while (plan->needed_bytes > plan->ram_bytes && options->draft_auto && session->max_drafts > 1) {
        session->max_drafts /= 2;
        start_plan(engine, options, session, plan);
    }
}

/* Spends the budget. */
static sl_status spend(sl_engine *engine, const sl_context_options *options, sl_session_options *session,
                       sl_plan *plan, sl_err *err)
{
    const sl_geom *geom = &session->kv.geom;
    uint64_t limit = 0, used = 0;
    sl_engine_memory(engine, &limit, &used);
    fit_drafts(engine, options, session, plan);
    /* the unfilled tiles never leave memory */
    uint64_t kv_bytes = plan->max_tokens / SL_TILE * SL_TILE * plan->kv_token_bytes;
    plan->disk_bytes = kv_bytes + (uint64_t)geom->n_layers * SL_SECTOR_BYTES;
    uint64_t room = less(limit, used + context_tables(options, session) + plan->draft_bytes -
                                    sl_draft_model_bytes(engine));
    sl_status status = choose_ring(options, geom, less(room, plan->window_bytes), kv_bytes, session, err);
    if (status != SL_OK)
        return status;
    if (plan->needed_bytes > plan->ram_bytes)
        return refuse(plan, err);
    plan->ring_bytes = N_SLOTS * session->kv.slot_bytes;
    room = less(room, plan->ring_bytes);
    /* A talk's window keeps its memory for good, and its passes are mostly short: resident parts come first. */
    uint64_t for_window = session->talks ? max_u64(less(room, kv_bytes), room / TALK_WINDOW_SHARE) : room;
    if (!options->window_tokens)
        plan->window_tokens = choose_window(session, options->prompt_tokens, for_window);
    plan->window_bytes = bytes_with_window(session, plan->window_tokens);
    plan->resident_bytes = min_u64(less(room, plan->window_bytes), kv_bytes);
    plan->decode_resident_bytes = min_u64(plan->resident_bytes + window_leaves(session), kv_bytes);
    session->kv.resident_bytes = plan->resident_bytes;
    /* A kept context is written whole, but for what its file holds; another keeps its own parts, from the one on that a
     * file's tokens end in, in memory before any others (store/parts.h). */
    uint64_t stored = stored_tokens(options), there = options->keep ? stored : stored / SL_PART_TOKENS * SL_PART_TOKENS;
    if (!options->keep && plan->resident_bytes >= less(kv_bytes, there * plan->kv_token_bytes))
        plan->disk_bytes = 0;
    plan->disk_bytes = less(plan->disk_bytes, there * plan->kv_token_bytes);
    return SL_OK;
}

sl_status sl_plan_sufficient(sl_engine *engine, uint64_t *out_bytes, sl_err *err)
{
    sl_weights sizes = {.hp = engine->hp};
    const sl_context_options options = {
        .cache = engine->hp.head_dim % SL_GROUP == 0 ? SL_CACHE_Q8_0 : SL_CACHE_F16,
        .prompt_tokens = engine->hp.n_ctx_train - 1,
        .predict_tokens = 1,
        .max_drafts = 15,
        .drafters = SL_DRAFT_WITH_NGRAM,
    };
    sl_kv_layer *layers = NULL;
    sl_session_options session;
    sl_plan plan;
    sl_status status = sl_mem_new(&engine->budget, engine->hp.n_layers, sizeof *layers, "geometry", &layers, err);
    if (status == SL_OK)
        status = sl_plan_session(engine, &options, layers, &session, err);
    if (status == SL_OK) {
        session.weights = &sizes;
        start_plan(engine, &options, &session, &plan);
        *out_bytes = plan.needed_bytes + NOISE_BYTES + (uint64_t)engine->hp.n_ctx_train * LIST_GROWTH * sizeof(int32_t);
    }
    sl_mem_free(&engine->budget, layers);
    return status;
}

/* ----------------------------------------------------------------------------------------------------------- disk */

static sl_status check_uring(const sl_vfs *vfs, sl_file *file, const char *dir, sl_err *err)
{
    const sl_aio_options options = {.file = file, .depth = 1};
    sl_aio *aio = NULL;
    int register_refused = 0, failed = vfs->aio_open ? vfs->aio_open(vfs, &options, &aio, &register_refused) : -ENOSYS;
    if (failed != 0)
        return sl_err_set_errno(err, SL_REFUSED, -failed, "%s: io_uring cannot be had here", dir);
    vfs->aio_close(aio);
    return SL_OK;
}

/* Before hours of work: the folder takes an unnamed file, keeps it on a disk, and has the room. A folder that was named
 * must be right even when nothing will be written. */
static sl_status check_disk(sl_plan *plan, const sl_context_options *options, const sl_kv_options *kv, sl_err *err)
{
    const char *from_env = getenv("SLUICE_KV_DIR");
    if (plan->disk_bytes == 0 && !options->kv_dir && !(from_env && *from_env)) {
        if (sl_os_disk_free(kv->dir, &plan->disk_free_bytes, NULL) != SL_OK)
            plan->disk_free_bytes = UINT64_MAX;
        return SL_OK;
    }
    const sl_vfs *vfs = sl_vfs_system();
    sl_file *file = NULL;
    bool is_direct = false;
    sl_status status = vfs->open_temp(vfs, kv->dir, true, kv->allow_ram_dir, &file, &is_direct, err);
    if (status == SL_FAILED && err)
        err->status = SL_REFUSED;
    if (status != SL_OK)
        return status == SL_FAILED ? SL_REFUSED : status;
    if (options->io == SL_IO_URING)
        status = check_uring(vfs, file, kv->dir, err);
    vfs->close(file);
    if (status != SL_OK)
        return status;
    status = sl_os_disk_free(kv->dir, &plan->disk_free_bytes, err);
    if (status == SL_OK && plan->disk_free_bytes < plan->disk_bytes)
        status = sl_err_set(err, SL_REFUSED, "%s: %" PRIu64 " bytes are free, the cache needs %" PRIu64, kv->dir,
                            plan->disk_free_bytes, plan->disk_bytes);
    return status;
}

const sl_io_profile *sl_plan_io(sl_engine *engine, const sl_context_options *options)
{
    return options->io == SL_IO_BUFFERED ? NULL : sl_engine_find_io(engine, kv_dir(options));
}

static sl_status decide(sl_engine *engine, const sl_context_options *options, sl_session_options *session,
                        sl_plan *plan, sl_err *err)
{
    const sl_io_profile *io = sl_plan_io(engine, options);
    session->kv.read_bytes = io ? io->read_bytes : 0;
    session->kv.in_flight_bytes = io ? sl_io_profile_flight(io) : 0;
    sl_status status = spend(engine, options, session, plan, err);
    if (status == SL_OK)
        return check_disk(plan, options, &session->kv, err);
    if (sl_os_disk_free(session->kv.dir, &plan->disk_free_bytes, NULL) != SL_OK)
        plan->disk_free_bytes = 0;
    return status;
}

static bool wants_probe(sl_engine *engine, const sl_context_options *options, const sl_plan *plan)
{
    bool is_known = sl_plan_io(engine, options) != NULL;
    if (options->io == SL_IO_BUFFERED || engine->io.was_probed)
        return false;
    bool is_worth = plan->disk_bytes > (engine->options.plan_only ? 0 : probe_from_bytes);
    return options->io_probe || (!is_known && is_worth);
}

sl_status sl_plan_make(sl_engine *engine, const sl_context_options *options, sl_session_options *session,
                       sl_plan *plan, sl_err *err)
{
    sl_status status = decide(engine, options, session, plan, err);
    if (status != SL_OK || !wants_probe(engine, options, plan))
        return status;
    status = sl_engine_probe_io(engine, options, session->kv.dir, err);
    return status == SL_OK ? decide(engine, options, session, plan, err) : status;
}

void sl_plan_estimate(const sl_engine *engine, const sl_context_options *options, const sl_plan *plan,
                      const sl_io_profile *io, size_t rows, sl_estimate *out)
{
    const sl_estimate_input in = {
        .hp = &engine->hp,
        .work = &engine->work,
        .plan = plan,
        .rates = &engine->rates,
        .io = io,
        .type = options->cache == SL_CACHE_F16 ? SL_KV_TYPE_F16 : SL_KV_TYPE_Q8_0,
        .prompt_tokens = options->prompt_tokens,
        .rows = rows,
        .read_rate = options->read_rate,
        .all_logits = options->all_logits,
        .stored_tokens = stored_tokens(options),
        .keeps = options->keep,
    };
    sl_estimate_make(&in, out);
    out->disk_remembered = io && !engine->io.was_probed;
}
