#include "decode/session.h"

#include <assert.h>
#include <string.h>

#include "decode/ngram.h"
#include "store/durable.h"

struct sl_session {
    sl_session_options options;
    sl_kv *kv;
    sl_graph *graph; /* of windows, then of bursts */
    bool bursting;
    uint64_t reserved_bytes; /* what bursts need beyond the window's memory */
    sl_ngram *ngram;
    int32_t *history; /* [max_tokens + 1] every token, fed or drawn */
    size_t n_history;
    size_t n_stored; /* tokens whose K and V are in the store */
    float *logits;   /* [SL_GRAPH_LOGIT_ROWS][n_vocab]; after a feed, row 0 is the last row's */
    bool has_logits;
    /* the feed under way, for progress between layers */
    const sl_feed_watch *watch;
    bool keeping;
    double rate; /* tokens a second of the last window; 0: unknown */
    double window_at_s, committed_at_s;
    size_t n_committed, keep_all;
    size_t feed_done, feed_total, window_rows;
    uint32_t layers_done;
};

static sl_graph_options graph_options(const sl_session_options *o, bool staged)
{
    return (sl_graph_options){
        .weights = o->weights,
        .kernels = o->kernels,
        .pool = o->pool,
        .budget = o->budget,
        .geom = o->kv.geom,
        .max_rows = staged ? o->max_drafts + 1 : o->window_rows,
        .staged = staged,
        .rope_factor = o->rope_factor,
        .trace = o->kv.trace,
    };
}

uint64_t sl_session_bytes(const sl_session_options *o)
{
    sl_graph_options window = graph_options(o, false), burst = graph_options(o, true);
    uint64_t window_bytes = sl_graph_bytes(&window), burst_bytes = o->will_decode ? sl_graph_bytes(&burst) : 0;
    return (o->max_tokens + 1) * sizeof(int32_t) +
           (uint64_t)SL_GRAPH_LOGIT_ROWS * o->weights->hp.n_vocab * sizeof(float) +
           (o->ngram ? sl_ngram_bytes(o->max_tokens + 1) : 0) + sizeof(sl_session) + 3 * SL_MEM_ALIGN +
           (window_bytes > burst_bytes ? window_bytes : burst_bytes);
}

/* All that the session will ever need is taken at once: what was planned cannot be lost to another session. */
static sl_status create_window(sl_session *s, sl_err *err)
{
    sl_graph_options window = graph_options(&s->options, false), burst = graph_options(&s->options, true);
    uint64_t window_bytes = sl_graph_bytes(&window), burst_bytes = s->options.will_decode ? sl_graph_bytes(&burst) : 0;
    sl_status status = sl_graph_create(&window, &s->graph, err);
    if (status == SL_OK && burst_bytes > window_bytes) {
        status = sl_budget_take(s->options.budget, burst_bytes - window_bytes, "rows of a burst", err);
        if (status == SL_OK)
            s->reserved_bytes = burst_bytes - window_bytes;
    }
    return status;
}

/* What the file holds is the text so far. */
static sl_status take_over(sl_session *s, sl_err *err)
{
    uint64_t n = sl_durable_get(s->options.kv.durable).n_tokens;
    if (n > s->options.max_tokens)
        return sl_err_set(err, SL_USAGE, "the context holds %llu tokens, %zu were planned", (unsigned long long)n,
                          s->options.max_tokens);
    memcpy(s->history, sl_durable_ids(s->options.kv.durable), (size_t)n * sizeof *s->history);
    s->n_history = s->n_stored = (size_t)n;
    return SL_OK;
}

sl_status sl_session_create(const sl_session_options *options, sl_session **out, sl_err *err)
{
    *out = NULL;
    sl_session *s = NULL;
    sl_status status = sl_mem_new(options->budget, 1, sizeof *s, "session", &s, err);
    if (status != SL_OK)
        return status;
    s->options = *options;
    sl_budget *budget = options->budget;
    status = sl_mem_new(budget, options->max_tokens + 1, sizeof *s->history, "token history", &s->history, err);
    if (status == SL_OK)
        status = sl_mem_new(budget, (size_t)SL_GRAPH_LOGIT_ROWS * options->weights->hp.n_vocab, sizeof *s->logits,
                            "logits", &s->logits, err);
    if (status == SL_OK && options->ngram)
        status = sl_ngram_create(options->max_tokens + 1, budget, &s->ngram, err);
    if (status == SL_OK)
        status = create_window(s, err);
    sl_kv_options kv = options->kv;
    kv.stop = options->stop;
    kv.arg = options->arg;
    if (status == SL_OK)
        status = sl_kv_create(&kv, &s->kv, err);
    if (status == SL_OK && kv.durable)
        status = take_over(s, err);
    if (status != SL_OK) {
        sl_session_destroy(s);
        return status;
    }
    *out = s;
    return SL_OK;
}

void sl_session_destroy(sl_session *s)
{
    if (!s)
        return;
    sl_kv_destroy(s->kv);
    sl_graph_destroy(s->graph);
    sl_budget_give(s->options.budget, s->reserved_bytes);
    sl_ngram_destroy(s->ngram);
    sl_mem_free(s->options.budget, s->logits);
    sl_mem_free(s->options.budget, s->history);
    sl_mem_free(s->options.budget, s);
}

const sl_kv *sl_session_kv(const sl_session *s)
{
    return s->kv;
}

size_t sl_session_n_tokens(const sl_session *s)
{
    return s->n_history;
}

const int32_t *sl_session_ids(const sl_session *s)
{
    return s->history;
}

/* ------------------------------------------------------------------------------------------------------ prefill */

/* A window is the least that can be committed: it shall not outlast the time between two commits. Nothing is known of
 * the speed before the first one. */
static size_t window_for_commits(const sl_session *s, size_t rows)
{
    enum { FIRST_ROWS = 256 };
    size_t most = s->options.commit_tokens > 0 ? s->options.commit_tokens : rows;
    if (s->options.commit_s > 0.0) {
        double by_time = s->rate > 0.0 ? s->rate * s->options.commit_s : (double)FIRST_ROWS;
        most = by_time < (double)most ? (size_t)by_time : most;
    }
    most = most < SL_TILE ? SL_TILE : most / SL_TILE * SL_TILE;
    return rows < most ? rows : most;
}

/* Rows of the window that starts at `pos`, `left` tokens before the end: to the next segment's edge where it is within
 * reach, else to a multiple of 64; the last window takes what is left. */
static size_t window_at(const sl_session *s, size_t pos, size_t left)
{
    size_t rows = s->options.window_rows;
    if (s->keeping)
        rows = window_for_commits(s, rows);
    size_t edge = SL_SEGMENT_TOKENS - pos % SL_SEGMENT_TOKENS;
    if (edge < rows)
        rows = edge;
    if (rows >= left)
        return left;
    size_t odd = (pos + rows) % SL_TILE;
    return odd < rows ? rows - odd : rows;
}

static sl_status report_logits(sl_session *s, size_t n_rows, const sl_feed_watch *watch, sl_err *err)
{
    size_t n_vocab = s->options.weights->hp.n_vocab;
    for (size_t first = 0; first < n_rows; first += SL_GRAPH_LOGIT_ROWS) {
        size_t n = n_rows - first < SL_GRAPH_LOGIT_ROWS ? n_rows - first : SL_GRAPH_LOGIT_ROWS;
        sl_status status = sl_graph_logits(s->graph, first, n, s->logits, err);
        for (size_t i = 0; status == SL_OK && i < n; i++)
            status = watch->logits(watch->arg, s->n_stored + first + i, s->logits + i * n_vocab, err);
        if (status != SL_OK)
            return status;
    }
    return SL_OK;
}

static bool is_stopped(void *arg)
{
    const sl_session *s = arg;
    return s->options.stop && s->options.stop(s->options.arg);
}

/* Asked by the graph before each layer. Progress counts a window's tokens by the layers they have passed. */
static bool between_layers(void *arg)
{
    sl_session *s = arg;
    if (s->watch && s->watch->progress)
        s->watch->progress(s->watch->arg,
                           s->feed_done + s->window_rows * s->layers_done / s->options.weights->hp.n_layers,
                           s->feed_total);
    s->layers_done++;
    return is_stopped(s);
}

static sl_status feed_window(sl_session *s, size_t n_rows, bool last, const sl_feed_watch *watch, sl_err *err)
{
    sl_graph_rows rows = {
        .ids = s->history + s->n_stored,
        .n_rows = n_rows,
        .first_pos = s->n_stored,
        .will_follow = !last || (s->options.will_decode && !s->keeping),
        .stop = between_layers,
        .stop_in_layer = is_stopped,
        .arg = s,
    };
    s->window_rows = n_rows;
    s->layers_done = 0;
    sl_status status = sl_graph_pass(s->graph, s->kv, &rows, err);
    if (status == SL_OK && watch && watch->logits)
        status = report_logits(s, n_rows, watch, err);
    if (status == SL_OK && last && !s->keeping)
        status = sl_graph_logits(s->graph, n_rows - 1, 1, s->logits, err);
    if (status == SL_OK)
        s->n_stored += n_rows;
    return status;
}

/* After a window of n_rows, when the next one might end too late: commits. */
static sl_status commit_if_due(sl_session *s, size_t n_rows, size_t n_all, sl_err *err)
{
    double now = sl_kv_seconds(), worked = now - s->committed_at_s;
    size_t n_new = s->n_stored - (size_t)s->n_committed;
    s->rate = now > s->window_at_s ? (double)n_rows / (now - s->window_at_s) : 0.0;
    s->window_at_s = now;
    size_t next = window_for_commits(s, s->options.window_rows);
    bool by_tokens = s->options.commit_tokens > 0 && n_new + next > s->options.commit_tokens;
    bool by_time = s->options.commit_s > 0.0 && s->rate > 0.0 && worked + (double)next / s->rate > s->options.commit_s;
    bool is_segment = s->n_stored % SL_SEGMENT_TOKENS == 0; /* costs next to nothing */
    if (s->n_stored < n_all && !by_tokens && !by_time && !is_segment)
        return SL_OK;
    sl_status status = sl_kv_commit(s->kv, s->history, n_all, err);
    if (status != SL_OK)
        return status;
    s->n_committed = s->n_stored;
    s->committed_at_s = s->window_at_s = sl_kv_seconds();
    return SL_OK;
}

sl_status sl_session_keep(sl_session *s, const int32_t *ids, size_t n, const sl_feed_watch *watch, sl_err *err)
{
    assert(s->options.kv.keep);
    s->keeping = true;
    s->n_committed = s->n_stored;
    s->committed_at_s = s->window_at_s = sl_kv_seconds();
    s->keep_all = s->n_history + n;
    sl_status status = sl_session_feed(s, ids, n, watch, err);
    s->keeping = false;
    return status == SL_OK ? sl_kv_finish(s->kv, err) : status;
}

sl_status sl_session_feed(sl_session *s, const int32_t *ids, size_t n, const sl_feed_watch *watch, sl_err *err)
{
    assert(!s->bursting && s->n_stored == s->n_history);
    if (n > s->options.max_tokens - s->n_history)
        return sl_err_set(err, SL_REFUSED, "context is full: %zu tokens, %zu more do not fit in %zu", s->n_history, n,
                          s->options.max_tokens);
    if (n == 0)
        return SL_OK;
    memcpy(s->history + s->n_history, ids, n * sizeof *ids);
    s->n_history += n;
    s->watch = watch;
    s->feed_total = n;
    sl_status status = SL_OK;
    for (s->feed_done = 0; status == SL_OK && s->feed_done < n;) {
        size_t rows = window_at(s, s->n_stored, n - s->feed_done);
        status = feed_window(s, rows, s->feed_done + rows == n, watch, err);
        s->feed_done += rows;
        if (status == SL_OK && s->keeping)
            status = commit_if_due(s, rows, s->keep_all, err);
    }
    if (status == SL_OK && watch && watch->progress)
        watch->progress(watch->arg, n, n);
    s->watch = NULL;
    s->has_logits = status == SL_OK && !s->keeping;
    return status;
}

/* ------------------------------------------------------------------------------------------------------- bursts */

/* The window's memory passes to the burst's and to resident parts. */
static sl_status start_bursting(sl_session *s, sl_err *err)
{
    if (s->bursting)
        return SL_OK;
    uint64_t before = sl_budget_left(s->options.budget);
    sl_graph_destroy(s->graph);
    s->graph = NULL;
    sl_budget_give(s->options.budget, s->reserved_bytes);
    s->reserved_bytes = 0;
    sl_graph_options options = graph_options(&s->options, true);
    sl_status status = sl_graph_create(&options, &s->graph, err);
    if (status != SL_OK)
        return status;
    s->bursting = true;
    uint64_t after = sl_budget_left(s->options.budget);
    return after > before ? sl_kv_set_resident(s->kv, s->options.kv.resident_bytes + (after - before), err) : SL_OK;
}

typedef struct burst {
    sl_session *session;
    const sl_generate_options *options;
    sl_generate_result *result;
    sl_sampler *sampler;
    sl_drafter drafter;
    int32_t *ids; /* [max_drafts + 1] the last token and its drafts */
} burst;

/* Takes a drawn token into the history and hands it out. Returns false when the text ends here; result->finish says
 * why. */
static bool take_token(burst *b, int32_t id)
{
    sl_session *s = b->session;
    const sl_generate_options *o = b->options;
    s->history[s->n_history++] = id;
    b->result->n_tokens++;
    if (o->is_end && o->is_end(o->arg, id)) {
        b->result->finish = SL_FINISH_STOP;
        return false;
    }
    if (o->token && !o->token(o->arg, id)) {
        b->result->finish = SL_FINISH_CANCELLED;
        return false;
    }
    if (b->result->n_tokens == o->n_predict) {
        b->result->finish = SL_FINISH_LENGTH;
        return false;
    }
    if (s->n_history >= o->n_context) {
        b->result->finish = SL_FINISH_CONTEXT;
        return false;
    }
    return true;
}

/* The last token and its drafts, cut where the text must end anyway: a burst of n rows draws at most n tokens. */
static size_t collect_rows(burst *b)
{
    sl_session *s = b->session;
    const sl_generate_options *o = b->options;
    size_t wanted = o->n_predict - b->result->n_tokens, room = o->n_context - s->n_history;
    size_t most = wanted < room ? wanted : room;
    size_t max = o->max_drafts < most - 1 ? o->max_drafts : most - 1;
    b->ids[0] = s->history[s->n_history - 1];
    size_t n = max > 0 && b->drafter.propose
                   ? b->drafter.propose(b->drafter.self, s->history, s->n_history, b->ids + 1, max)
                   : 0;
    /* A drafter may guess nonsense: ids that do not exist cannot be computed, and so end the chain. */
    for (size_t i = 0; i < n; i++)
        if (b->ids[1 + i] < 0 || (uint32_t)b->ids[1 + i] >= s->options.weights->hp.n_vocab)
            n = i;
    b->result->n_drafted += n;
    return n + 1;
}

/* Draws row after row while the drafts agree. *n_kept: rows whose input is part of the text. */
static sl_status verify_rows(burst *b, size_t n_rows, size_t *n_kept, bool *go_on, sl_err *err)
{
    sl_session *s = b->session;
    size_t n_vocab = s->options.weights->hp.n_vocab;
    *n_kept = 0;
    for (size_t row = 0; row < n_rows; row++) {
        size_t in_batch = row % SL_GRAPH_LOGIT_ROWS;
        if (in_batch == 0) {
            size_t n = n_rows - row < SL_GRAPH_LOGIT_ROWS ? n_rows - row : SL_GRAPH_LOGIT_ROWS;
            sl_status status = sl_graph_logits(s->graph, row, n, s->logits, err);
            if (status != SL_OK)
                return status;
        }
        ++*n_kept;
        int32_t id = sl_sampler_draw(b->sampler, s->logits + in_batch * n_vocab, s->n_history);
        *go_on = take_token(b, id);
        if (!*go_on || row + 1 == n_rows || b->ids[row + 1] != id)
            break;
        b->result->n_accepted++;
    }
    return SL_OK;
}

static sl_status run_burst(burst *b, bool *go_on, sl_err *err)
{
    sl_session *s = b->session;
    size_t n_rows = collect_rows(b), n_kept = 0;
    sl_graph_rows rows = {
        .ids = b->ids,
        .n_rows = n_rows,
        .first_pos = s->n_stored,
        .will_follow = b->options->n_predict - b->result->n_tokens > n_rows,
        .stop = is_stopped,
        .stop_in_layer = is_stopped,
        .arg = s,
    };
    sl_status status = sl_graph_pass(s->graph, s->kv, &rows, err);
    if (status == SL_OK)
        status = verify_rows(b, n_rows, &n_kept, go_on, err);
    if (status == SL_OK)
        status = sl_graph_accept(s->graph, s->kv, n_kept, err);
    if (status != SL_OK)
        return status;
    s->n_stored += n_kept;
    b->result->n_passes++;
    b->result->n_rows += n_rows;
    return SL_OK;
}

static sl_status run_bursts(burst *b, sl_err *err)
{
    sl_session *s = b->session;
    bool go_on = take_token(b, sl_sampler_draw(b->sampler, s->logits, s->n_history));
    sl_status status = SL_OK;
    if (go_on)
        status = start_bursting(s, err);
    while (status == SL_OK && go_on) {
        if (is_stopped(s)) {
            b->result->finish = SL_FINISH_CANCELLED;
            return SL_OK;
        }
        status = run_burst(b, &go_on, err);
    }
    if (status == SL_CANCELLED) {
        b->result->finish = SL_FINISH_CANCELLED;
        return SL_OK;
    }
    return status;
}

sl_status sl_session_generate(sl_session *s, const sl_generate_options *options, sl_generate_result *out, sl_err *err)
{
    memset(out, 0, sizeof *out);
    assert(s->has_logits && options->max_drafts <= s->options.max_drafts);
    assert(options->n_context <= s->options.max_tokens);
    if (options->n_predict == 0 || s->n_history >= options->n_context) {
        out->finish = options->n_predict == 0 ? SL_FINISH_LENGTH : SL_FINISH_CONTEXT;
        return SL_OK;
    }
    burst b = {.session = s, .options = options, .result = out};
    if (options->drafter)
        b.drafter = *options->drafter;
    else if (s->ngram)
        b.drafter = sl_ngram_drafter(s->ngram);
    sl_status status = sl_sampler_create(&options->sampling, s->options.weights->hp.n_vocab, s->options.kernels,
                                         s->options.budget, &b.sampler, err);
    if (status == SL_OK)
        status = sl_mem_new(s->options.budget, options->max_drafts + 1, sizeof *b.ids, "drafts", &b.ids, err);
    if (status == SL_OK)
        status = run_bursts(&b, err);
    sl_mem_free(s->options.budget, b.ids);
    sl_sampler_destroy(b.sampler);
    return status;
}
