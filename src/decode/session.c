#include "decode/session.h"

#include <assert.h>
#include <string.h>

#include "decode/session_impl.h"
#include "store/durable.h"

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
        .trees = staged && o->trees,
        .rope = o->rope,
        .trace = o->kv.trace,
    };
}

/* Drafts of the model for itself: with memory for them, and where drafts are asked for. */
static bool drafts_itself(const sl_session_options *o)
{
    return o->hot_tokens > 0 && o->will_decode && o->max_drafts > 0;
}

static sl_self_options self_options(const sl_session_options *o)
{
    return (sl_self_options){
        .weights = o->weights,
        .kernels = o->kernels,
        .pool = o->pool,
        .budget = o->budget,
        .geom = o->kv.geom,
        .max_tokens = o->max_tokens,
        .hot_tokens = o->hot_tokens,
        .max_depth = o->max_drafts,
        .rope = o->rope,
        .stop = o->stop,
        .arg = o->arg,
    };
}

uint64_t sl_session_bytes(const sl_session_options *o)
{
    sl_graph_options window = graph_options(o, false), burst = graph_options(o, true);
    uint64_t window_bytes = sl_graph_bytes(&window), burst_bytes = o->will_decode ? sl_graph_bytes(&burst) : 0;
    const sl_self_options self = self_options(o);
    return (o->max_tokens + 1) * sizeof(int32_t) +
           (uint64_t)SL_GRAPH_LOGIT_ROWS * o->weights->hp.n_vocab * sizeof(float) +
           (o->ngram ? sl_ngram_bytes(o->max_tokens + 1) : 0) + (drafts_itself(o) ? sl_self_bytes(&self) : 0) +
           sizeof(sl_session) + 3 * SL_MEM_ALIGN +
           (window_bytes > burst_bytes ? window_bytes : burst_bytes);
}

/* What the graph of the other kind takes more than this one. */
static uint64_t bytes_beyond(const sl_session_options *o, bool bursting)
{
    sl_graph_options window = graph_options(o, false), burst = graph_options(o, true);
    uint64_t window_bytes = sl_graph_bytes(&window), burst_bytes = o->will_decode ? sl_graph_bytes(&burst) : 0;
    if (bursting)
        return o->talks && window_bytes > burst_bytes ? window_bytes - burst_bytes : 0;
    return burst_bytes > window_bytes ? burst_bytes - window_bytes : 0;
}

/* All that the session will ever need is taken at once: what was planned cannot be lost to another session. */
sl_status sl_session_set_bursting(sl_session *s, bool on, sl_err *err)
{
    if (s->graph && s->bursting == on)
        return SL_OK;
    sl_graph_destroy(s->graph);
    s->graph = NULL;
    sl_budget_give(s->options.budget, s->reserved_bytes);
    s->reserved_bytes = 0;
    s->bursting = on;
    sl_graph_options options = graph_options(&s->options, on);
    options.hot = s->self ? sl_self_hot(s->self) : NULL;
    uint64_t beyond = bytes_beyond(&s->options, on);
    sl_status status = sl_graph_create(&options, &s->graph, err);
    if (status == SL_OK && beyond > 0) {
        status = sl_budget_take(s->options.budget, beyond, "rows of windows and bursts", err);
        s->reserved_bytes = status == SL_OK ? beyond : 0;
    }
    return status;
}

/* The text is the first n tokens of the history. What was read is known to drafters at once, what was forgotten is
 * not. */
static void settle_drafters(sl_session *s, size_t n)
{
    for (size_t i = 0; i < s->n_drafters; i++)
        if (s->drafters[i].settled)
            s->drafters[i].settled(s->drafters[i].self, s->history, n);
}

/* What the file holds is the text so far. */
static sl_status take_over(sl_session *s, sl_err *err)
{
    const sl_kv_options *kv = &s->options.kv;
    uint64_t n = kv->durable_tokens > 0 ? kv->durable_tokens : sl_durable_get(kv->durable).n_tokens;
    if (n > s->options.max_tokens)
        return sl_err_set(err, SL_USAGE, "the context holds %llu tokens, %zu were planned", (unsigned long long)n,
                          s->options.max_tokens);
    memcpy(s->history, sl_durable_ids(kv->durable), (size_t)n * sizeof *s->history);
    s->n_history = s->n_stored = (size_t)n;
    settle_drafters(s, (size_t)n);
    return SL_OK;
}

/* The session's own, and those that it was given. */
static sl_status make_drafters(sl_session *s, sl_err *err)
{
    const sl_session_options *o = &s->options;
    sl_status status = SL_OK;
    if (o->ngram)
        status = sl_ngram_create(o->max_tokens + 1, o->budget, &s->ngram, err);
    if (s->ngram)
        s->drafters[s->n_drafters++] = sl_ngram_drafter(s->ngram);
    const sl_self_options self = self_options(o);
    if (status == SL_OK && drafts_itself(o))
        status = sl_self_create(&self, &s->self, err);
    if (s->self)
        s->drafters[s->n_drafters++] = sl_self_drafter(s->self);
    assert(s->n_drafters + o->n_drafters <= SL_MAX_DRAFTERS);
    for (size_t i = 0; i < o->n_drafters; i++)
        s->drafters[s->n_drafters++] = o->drafters[i];
    return status;
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
    if (status == SL_OK)
        status = make_drafters(s, err);
    if (status == SL_OK)
        status = sl_session_set_bursting(s, false, err);
    sl_kv_options kv = options->kv;
    kv.stop = options->stop;
    kv.arg = options->arg;
    if (status == SL_OK)
        status = sl_kv_create(&kv, &s->kv, err);
    if (status == SL_OK && s->self)
        sl_self_bind(s->self, s->kv);
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
    sl_self_destroy(s->self);
    sl_ngram_destroy(s->ngram);
    sl_mem_free(s->options.budget, s->logits);
    sl_mem_free(s->options.budget, s->history);
    sl_mem_free(s->options.budget, s);
}

sl_kv *sl_session_kv(const sl_session *s)
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

size_t sl_session_n_stored(const sl_session *s)
{
    return s->n_stored;
}

const sl_drafter *sl_session_drafters(const sl_session *s, size_t *n)
{
    *n = s->n_drafters;
    return s->drafters;
}

bool sl_session_has_logits(const sl_session *s)
{
    return s->has_logits;
}

bool sl_session_is_whole(const sl_session *s)
{
    return !s->is_broken;
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

bool sl_session_is_stopped(void *arg)
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
    return sl_session_is_stopped(s);
}

static sl_status feed_window(sl_session *s, size_t n_rows, bool last, const sl_feed_watch *watch, sl_err *err)
{
    sl_graph_rows rows = {
        .ids = s->history + s->n_stored,
        .n_rows = n_rows,
        .first_pos = s->n_stored,
        .will_follow = !last || (s->options.will_decode && !s->keeping),
        .stop = between_layers,
        .stop_in_layer = sl_session_is_stopped,
        .arg = s,
    };
    s->window_rows = n_rows;
    s->layers_done = 0;
    sl_status status = sl_graph_pass(s->graph, s->kv, &rows, err);
    if (status == SL_OK && watch && watch->logits)
        status = report_logits(s, n_rows, watch, err);
    if (status == SL_OK && last && !s->keeping)
        status = sl_graph_logits(s->graph, n_rows - 1, 1, s->logits, err);
    if (status != SL_OK)
        return status;
    s->n_stored += n_rows;
    settle_drafters(s, s->n_stored);
    return SL_OK;
}

static sl_status commit_all(sl_session *s, size_t n_all, sl_err *err)
{
    sl_status status = sl_kv_commit(s->kv, s->history, n_all, err);
    if (status == SL_OK) {
        s->n_committed = s->n_stored;
        s->committed_at_s = s->window_at_s = sl_kv_seconds();
    }
    return status;
}

/* After a window of n_rows, when the next one might end too late: commits. */
static sl_status commit_if_due(sl_session *s, size_t n_rows, size_t n_all, sl_err *err)
{
    double now = sl_kv_seconds(), worked = now - s->committed_at_s;
    size_t n_new = s->n_stored - (size_t)s->n_committed;
    s->rate = now > s->window_at_s ? (double)n_rows / (now - s->window_at_s) : 0.0;
    s->window_at_s = now;
    size_t next = window_at(s, s->n_stored, n_all - s->n_stored);
    bool by_tokens = s->options.commit_tokens > 0 && n_new + next > s->options.commit_tokens;
    bool by_time = s->options.commit_s > 0.0 && s->rate > 0.0 && worked + (double)next / s->rate > s->options.commit_s;
    bool is_segment = s->n_stored % SL_SEGMENT_TOKENS == 0; /* costs next to nothing */
    if (s->n_stored < n_all && !by_tokens && !by_time && !is_segment)
        return SL_OK;
    return commit_all(s, n_all, err);
}

/* A polite end amid a window: what the windows before it have stored is kept, so far as that goes quickly and well;
 * what was committed before stays so in any case. */
static void keep_before_end(sl_session *s)
{
    sl_err why;
    if (!s->keeping || s->keep_all == 0 || s->n_stored <= s->n_committed || s->n_stored <= s->keep_from)
        return;
    const sl_status ended = sl_kv_pass_end(s->kv, NULL);
    (void)ended; /* SL_USAGE where it had ended */
    sl_status status = sl_kv_truncate(s->kv, s->n_stored, &why);
    if (status == SL_OK)
        status = commit_all(s, s->keep_all, &why);
    (void)status;
}

/* All windows of what is not stored yet. */
static sl_status feed_windows(sl_session *s, const sl_feed_watch *watch, sl_err *err)
{
    sl_status status = sl_session_set_bursting(s, false, err);
    s->watch = watch;
    s->feed_total = s->n_history - s->n_stored;
    for (s->feed_done = 0; status == SL_OK && s->feed_done < s->feed_total;) {
        size_t rows = window_at(s, s->n_stored, s->feed_total - s->feed_done);
        status = feed_window(s, rows, s->feed_done + rows == s->feed_total, watch, err);
        s->feed_done += rows;
        if (status == SL_OK && watch && watch->stored)
            status = watch->stored(watch->arg, s->n_stored, err);
        if (status == SL_OK && s->keeping && s->keep_all > 0)
            status = commit_if_due(s, rows, s->keep_all, err);
    }
    if (status == SL_OK && watch && watch->progress)
        watch->progress(watch->arg, s->feed_total, s->feed_total);
    if (status == SL_CANCELLED)
        keep_before_end(s);
    s->watch = NULL;
    return status;
}

sl_status sl_session_feed(sl_session *s, const int32_t *ids, size_t n, const sl_feed_watch *watch, sl_err *err)
{
    const size_t n_before = s->n_history;
    assert(!s->is_broken && (s->options.talks || s->n_stored == n_before));
    if (n > s->options.max_tokens - n_before)
        return sl_err_set(err, SL_REFUSED, "context is full: %zu tokens, %zu more do not fit in %zu", n_before, n,
                          s->options.max_tokens);
    if (n > 0)
        memcpy(s->history + n_before, ids, n * sizeof *ids);
    s->n_history += n;
    if (s->n_history == s->n_stored)
        return SL_OK;
    s->has_logits = false;
    sl_status status = feed_windows(s, watch, err);
    s->has_logits = status == SL_OK && !s->keeping;
    if (status == SL_OK)
        return status;
    settle_drafters(s, n_before);
    s->n_history = n_before;
    sl_session_take_back(s, s->n_stored < n_before ? s->n_stored : n_before);
    return status;
}

sl_status sl_session_keep(sl_session *s, const int32_t *ids, size_t n, const sl_feed_watch *watch, sl_err *err)
{
    assert(s->options.kv.keep);
    s->keeping = true;
    s->n_committed = (size_t)sl_durable_get(s->options.kv.durable).n_tokens;
    s->committed_at_s = s->window_at_s = sl_kv_seconds();
    /* What earlier feeds and answers left comes in by one commit: of it, no part may stand alone. */
    s->keep_all = n > 0 ? s->n_history + n : 0;
    s->keep_from = s->n_history;
    sl_status status = sl_session_feed(s, ids, n, watch, err);
    /* What an earlier feed stored, and nothing came behind. */
    if (status == SL_OK && s->n_stored > s->n_committed)
        status = sl_kv_commit(s->kv, s->history, s->n_stored, err);
    s->keeping = false;
    return status == SL_OK ? sl_kv_finish(s->kv, err) : status;
}

/* --------------------------------------------------------------------------------------------------- taking back */

void sl_session_take_back(sl_session *s, size_t n)
{
    const sl_status ended = sl_kv_pass_end(s->kv, NULL);
    (void)ended; /* SL_USAGE where it had ended, or none had begun */
    bool is_even = true;
    for (uint32_t layer = 0; layer < s->options.weights->hp.n_layers; layer++)
        is_even = is_even && sl_kv_tokens(s->kv, layer) == n;
    const bool can_cut = s->options.talks && !s->options.kv.keep;
    if (!is_even && can_cut)
        n = (size_t)sl_kv_find_point(s->kv, n);
    s->is_broken = !is_even && !(can_cut && sl_kv_truncate(s->kv, n, NULL) == SL_OK);
    s->n_stored = n;
    if (s->self)
        sl_hot_settle(sl_self_hot(s->self), n);
}

sl_status sl_session_rewind(sl_session *s, size_t n, sl_err *err)
{
    assert(!s->is_broken && s->options.talks && n <= s->n_history);
    if (n == s->n_history)
        return SL_OK;
    settle_drafters(s, n);
    s->n_history = n;
    s->has_logits = false;
    return n < s->n_stored ? sl_session_unstore(s, n, err) : SL_OK;
}

sl_status sl_session_unstore(sl_session *s, size_t first, sl_err *err)
{
    assert(!s->is_broken && s->options.talks && first <= s->n_stored);
    const size_t n = (size_t)sl_kv_find_point(s->kv, first);
    if (n == s->n_stored)
        return SL_OK;
    sl_status status = sl_kv_truncate(s->kv, n, err);
    s->is_broken = status != SL_OK;
    s->n_stored = n;
    s->has_logits = false;
    settle_drafters(s, n);
    return status;
}
