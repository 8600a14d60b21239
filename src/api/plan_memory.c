/* What the budget is spent on: weights and tables (already taken), ring, window up to one segment, resident parts.
 * Where it cannot hold the weights: tables, ring, window and as many weights as go with the fewest bytes read. */
#include "api/plan_impl.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "api/draft_model.h"
#include "api/drafters.h"
#include "api/store.h"
#include "decode/stops.h"
#include "model/weight_stream.h"
#include "store/durable.h"
#include "store/parts.h"

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
    LIST_GROWTH = 3 /* a list of tokens that doubles holds at most so many times its length, old and new */
};

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

static uint64_t bytes_with_window(sl_session_options *session, size_t rows)
{
    session->window_rows = rows;
    return sl_session_bytes(session);
}

/* The largest window that fits `room` and of which a whole number makes a segment: then windows end on segments. */
static size_t choose_window(sl_session_options *session, size_t prompt_tokens, uint64_t room)
{
    if (session->talks && prompt_tokens > SL_PLAN_TALK_ROWS)
        prompt_tokens = SL_PLAN_TALK_ROWS;
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
                      "memory budget of %.1f MiB is too small, %" PRIu64 "M would do: program %.1f MiB, weights %s%.1f"
                      ", tables %.1f, ring %.1f, smallest window and burst %.1f%s",
                      mib(plan->ram_bytes), (plan->needed_bytes + NOISE_BYTES + MIB - 1) / MIB,
                      mib(plan->program_bytes), plan->weight_buffer_bytes > 0 ? "(the others read for each pass) " : "",
                      mib(plan->weight_bytes + plan->weight_buffer_bytes), mib(plan->table_bytes),
                      mib(plan->ring_bytes), mib(plan->window_bytes), draft);
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
    /* of a context file that is made after the plan; one that is there counts as used */
    uint64_t file = options->keep && !options->store ? sl_durable_bytes(&session->kv.geom, session->max_tokens) : 0;
    return file + sl_kv_table_bytes(&session->kv.geom, session->max_tokens) +
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

/* The weights with so much room; what is no tensor of theirs, nor a buffer, is of the tables. */
static void place_weights(sl_engine *engine, uint64_t room, sl_plan *plan)
{
    sl_weight_share share;
    sl_weights_choose(engine->weights, room, &share);
    const uint64_t streamed = engine->weights->matrix_bytes - share.resident_bytes;
    plan->weight_room_bytes = room;
    plan->file_weight_bytes = streamed > 0 ? engine->work.weight_bytes : 0;
    plan->weight_bytes = engine->work.weight_bytes - streamed;
    plan->weight_buffer_bytes = share.buffer_bytes;
    plan->table_bytes += share.memory_bytes - share.buffer_bytes - plan->weight_bytes;
    plan->weight_pass_bytes = share.pass_bytes;
    plan->weight_logit_bytes = share.logit_bytes;
    plan->weight_row_bytes = share.row_bytes;
}

/* What is fixed before any choice; the plan then holds the smallest of everything: of weights, all or the least. */
static void start_plan(sl_engine *engine, const sl_context_options *options, sl_session_options *session,
                       bool holds_weights, sl_plan *plan)
{
    const sl_geom *geom = &session->kv.geom;
    uint64_t limit = 0, used = 0;
    sl_engine_memory(engine, &limit, &used);
    memset(plan, 0, sizeof *plan);
    plan->ram_bytes = engine->ram_bytes;
    plan->program_bytes = engine->program_bytes;
    plan->kv_token_bytes = sl_geom_token_bytes(geom);
    plan->kv_bytes = session->max_tokens * plan->kv_token_bytes;
    plan->max_tokens = session->max_tokens;
    plan->walked_bytes = sl_geom_seen_bytes(geom, session->max_tokens, session->max_tokens);
    plan->answer_bytes = sl_parts_seen_bytes(geom, session->max_tokens, &session->kv.slide, session->kv.answer_from);
    plan->kept_bytes = sl_parts_bytes(geom, session->max_tokens, &session->kv.slide, 0);
    plan->n_slots = N_SLOTS;
    plan->max_drafts = session->max_drafts;
    plan->drafters = drafters_of(engine, options, session);
    plan->hot_tokens = plan->drafters & SL_DRAFT_WITH_SELF ? session->hot_tokens : 0;
    plan->draft_bytes = sl_draft_model_bytes(engine) +
                        sl_drafters_bytes(engine, plan->drafters, session->max_tokens);
    plan->table_bytes = used - sl_draft_model_bytes(engine) + context_tables(options, session);
    place_weights(engine, holds_weights ? UINT64_MAX : sl_weights_least(engine->weights), plan);
    plan->window_tokens = options->window_tokens ? options->window_tokens : SL_TILE;
    plan->window_bytes = bytes_with_window(session, plan->window_tokens);
    plan->ring_bytes = max_u64(N_SLOTS * sl_geom_max_part_bytes(geom),
                               options->ring_bytes / N_SLOTS / SL_SECTOR_BYTES * SL_SECTOR_BYTES * N_SLOTS);
    plan->needed_bytes = plan->program_bytes + plan->weight_bytes + plan->weight_buffer_bytes + plan->draft_bytes +
                         plan->table_bytes + plan->ring_bytes + plan->window_bytes;
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
                       bool holds_weights, sl_plan *plan)
{
    enum { HOT_SHARE = 8 };
    const bool is_hot_chosen = options->hot_tokens == 0, is_self_chosen = options->drafters == 0;
    const size_t least = is_self_chosen ? SL_LEAST_HOT_TOKENS : SL_TILE;
    const char *no_self = session->hot_tokens > 0 ? NULL : "the context is too short for a hot set";
    if (!holds_weights && is_self_chosen && session->hot_tokens > 0) {
        session->hot_tokens = 0;
        no_self = "each draft would read the weights, too";
    }
    start_plan(engine, options, session, holds_weights, plan);
    while (is_hot_chosen && session->hot_tokens > 0) {
        const uint64_t hot = hot_bytes(session), room = less(plan->ram_bytes + hot, plan->needed_bytes);
        const bool is_idle = is_self_chosen && plan->answer_bytes <= room;
        if (!is_idle && hot <= room / HOT_SHARE)
            break;
        if (!is_idle && !is_self_chosen && session->hot_tokens <= least)
            break;
        if (is_idle || session->hot_tokens <= least) {
            session->hot_tokens = 0;
            no_self = is_idle ? "the cache stays in memory" : "too little memory for a hot set of 256 tokens";
        } else {
            session->hot_tokens = session->hot_tokens / 2 > least ? session->hot_tokens / 2 : least;
        }
        start_plan(engine, options, session, holds_weights, plan);
    }
    while (plan->needed_bytes > plan->ram_bytes && options->draft_auto && session->max_drafts > 1) {
        session->max_drafts /= 2;
        start_plan(engine, options, session, holds_weights, plan);
    }
    plan->no_self = is_self_chosen && plan->max_drafts > 0 ? no_self : NULL;
}

/* With all weights where these and the smallest of everything fit, else with the least of them, too. What is said to be
 * needed is the least in either case. */
static void fit(sl_engine *engine, const sl_context_options *options, sl_session_options *session, sl_plan *plan)
{
    const sl_session_options wanted = *session;
    fit_drafts(engine, options, session, true, plan);
    const uint64_t whole_bytes = plan->whole_bytes = plan->needed_bytes + NOISE_BYTES;
    if (plan->needed_bytes > plan->ram_bytes) {
        *session = wanted;
        fit_drafts(engine, options, session, false, plan);
        plan->whole_bytes = whole_bytes;
        return;
    }
    sl_plan least = *plan;
    sl_session_options smallest = *session;
    start_plan(engine, options, &smallest, false, &least);
    plan->needed_bytes = min_u64(plan->needed_bytes, least.needed_bytes);
}

/* Bytes of weights that prompt and answer read, with a window of so many rows in so much room. */
static double weight_reading(sl_engine *engine, const sl_context_options *options, const sl_session_options *session,
                             uint64_t room)
{
    sl_weight_share share;
    sl_weights_choose(engine->weights, less(room, sl_session_bytes(session)), &share);
    const double rows = (double)session->window_rows, n = (double)options->prompt_tokens;
    const double passes = (double)(uint64_t)((n + rows - 1.0) / rows) + (double)options->predict_tokens;
    return passes * (double)share.pass_bytes + (double)(options->predict_tokens + 1) * (double)share.logit_bytes;
}

/* The window with which the fewest bytes of weights are read: a larger one is read for less often, and leaves room for
 * fewer. Of which a whole number makes a segment, as in choose_window. */
static size_t choose_window_beside_weights(sl_engine *engine, const sl_context_options *options,
                                           const sl_session_options *session, uint64_t room)
{
    sl_session_options trial = *session;
    const uint64_t least_bytes = sl_weights_least(engine->weights);
    size_t best = SL_TILE, most = (options->prompt_tokens + SL_TILE - 1) / SL_TILE * SL_TILE;
    double best_bytes = -1.0;
    for (size_t rows = SL_TILE; rows <= SL_SEGMENT_TOKENS; rows *= 2) {
        trial.window_rows = rows < most ? rows : most > 0 ? most : SL_TILE;
        if (trial.window_rows > SL_TILE && sl_session_bytes(&trial) + least_bytes > room)
            break;
        const double bytes = weight_reading(engine, options, &trial, room);
        if (best_bytes < 0.0 || bytes < best_bytes) {
            best = trial.window_rows;
            best_bytes = bytes;
        }
    }
    return best;
}

/* Room for window, weights and resident parts, when weights must be read: what is left of it is the parts'. */
static uint64_t spend_on_weights(sl_engine *engine, const sl_context_options *options, sl_session_options *session,
                                 uint64_t room, sl_plan *plan)
{
    if (!options->window_tokens)
        plan->window_tokens = choose_window_beside_weights(engine, options, session, room);
    plan->window_bytes = bytes_with_window(session, plan->window_tokens);
    const uint64_t for_weights = less(room, plan->window_bytes);
    sl_weight_share least;
    sl_weights_choose(engine->weights, sl_weights_least(engine->weights), &least);
    plan->table_bytes -= least.memory_bytes - least.buffer_bytes - plan->weight_bytes;
    place_weights(engine, for_weights, plan);
    sl_weight_share share;
    sl_weights_choose(engine->weights, for_weights, &share);
    return less(for_weights, share.memory_bytes);
}

/* Window and resident parts, all weights being in memory. */
static uint64_t spend_on_window(const sl_context_options *options, sl_session_options *session, uint64_t room,
                                uint64_t kv_bytes, sl_plan *plan)
{
    /* A talk's window keeps its memory for good, and its passes are mostly short: resident parts come first. */
    uint64_t for_window = session->talks ? max_u64(less(room, kv_bytes), room / TALK_WINDOW_SHARE) : room;
    if (!options->window_tokens)
        plan->window_tokens = choose_window(session, options->prompt_tokens, for_window);
    plan->window_bytes = bytes_with_window(session, plan->window_tokens);
    return less(room, plan->window_bytes);
}

sl_status sl_plan_spend(sl_engine *engine, const sl_context_options *options, sl_session_options *session,
                        sl_plan *plan, sl_err *err)
{
    const sl_geom *geom = &session->kv.geom;
    uint64_t limit = 0, used = 0;
    sl_engine_memory(engine, &limit, &used);
    fit(engine, options, session, plan);
    const bool holds_weights = plan->weight_buffer_bytes == 0;
    sl_weight_share weights;
    sl_weights_choose(engine->weights, plan->weight_room_bytes, &weights);
    /* the unfilled tiles never leave memory */
    const uint64_t kv_bytes = plan->kept_bytes, stored = sl_plan_stored_tokens(options);
    const uint64_t waiting_bytes = (uint64_t)geom->n_layers * SL_SECTOR_BYTES;
    plan->disk_bytes = kv_bytes + waiting_bytes;
    uint64_t room = less(limit, used + weights.memory_bytes + context_tables(options, session) + plan->draft_bytes -
                                    sl_draft_model_bytes(engine));
    sl_status status = choose_ring(options, geom, less(room, plan->window_bytes), kv_bytes, session, err);
    if (status != SL_OK)
        return status;
    if (plan->needed_bytes > plan->ram_bytes)
        return refuse(plan, err);
    plan->ring_bytes = N_SLOTS * session->kv.slot_bytes;
    room = less(room, plan->ring_bytes);
    uint64_t left = holds_weights
                        ? spend_on_window(options, session, room, kv_bytes, plan)
                        : spend_on_weights(engine, options, session, room + weights.memory_bytes, plan);
    plan->resident_bytes = min_u64(left, kv_bytes);
    plan->decode_resident_bytes = min_u64(plan->resident_bytes + window_leaves(session), kv_bytes);
    session->kv.resident_bytes = plan->resident_bytes;
    /* A kept context is written whole, but for what its file holds; another keeps its own parts, from the one on that a
     * file's tokens end in, in memory before any others (store/parts.h). */
    if (options->keep) {
        plan->disk_bytes = less(plan->disk_bytes, stored * plan->kv_token_bytes);
        return SL_OK;
    }
    const uint64_t own_bytes =
        sl_parts_bytes(geom, session->max_tokens, &session->kv.slide, stored / SL_PART_TOKENS);
    plan->disk_bytes = plan->resident_bytes >= own_bytes ? 0 : own_bytes + waiting_bytes;
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
        .no_trees = true,
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
        start_plan(engine, &options, &session, false, &plan);
        *out_bytes = plan.needed_bytes + NOISE_BYTES + (uint64_t)engine->hp.n_ctx_train * LIST_GROWTH * sizeof(int32_t);
    }
    sl_mem_free(&engine->budget, layers);
    return status;
}
