/* Bursts: the last token and its drafts in one pass; every position is drawn as plain decoding would, and the way down
 * the tree of drafts that the draws take is what is kept. */
#include <assert.h>
#include <string.h>

#include "decode/session_impl.h"

/* The window's memory passes to the burst's and, where no window follows, to resident parts. */
static sl_status start_bursting(sl_session *s, sl_err *err)
{
    if (s->graph && s->bursting)
        return SL_OK;
    uint64_t before = sl_budget_left(s->options.budget);
    sl_status status = sl_session_set_bursting(s, true, err);
    if (status != SL_OK || s->options.talks)
        return status;
    uint64_t after = sl_budget_left(s->options.budget);
    return after > before ? sl_kv_set_resident(s->kv, s->options.kv.resident_bytes + (after - before), err) : SL_OK;
}

typedef struct burst {
    sl_session *session;
    const sl_generate_options *options;
    sl_generate_result *result;
    sl_sampler *sampler;
    const sl_drafter *drafters;
    size_t n_drafters;
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

/* Draws what follows the history. Returns as take_token. */
static bool draw_token(burst *b, const float *logits, int32_t *id)
{
    const sl_session *s = b->session;
    *id = sl_sampler_draw(b->sampler, logits, s->history, s->n_history);
    if (b->options->drawn)
        b->options->drawn(b->options->arg, *id, logits);
    return take_token(b, *id);
}

/* ----------------------------------------------------------------------------------------------------- drafting */

/* A drafter's row, in rows of a pass: by the bytes that each goes through. */
static double row_work(const sl_session *s, const sl_drafter *drafter)
{
    const uint64_t bytes = s->options.weight_bytes;
    if (bytes == 0)
        return 0.0;
    return (double)drafter->row_bytes /
           (double)(bytes + sl_geom_seen_bytes(&s->options.kv.geom, s->n_stored, s->n_stored));
}

static size_t unread(const burst *b, size_t d)
{
    const sl_drafter *drafter = &b->drafters[d];
    return drafter->unread ? drafter->unread(drafter->self, b->session->n_history) : 0;
}

/* One drafter's answer joins the guesses. */
static sl_status ask_drafter(burst *b, size_t d, size_t n_nodes, sl_guess_limits *limits, sl_err *err)
{
    sl_session *s = b->session;
    sl_draft_counts *counts = &b->result->draft;
    /* More than will be verified: second choices, of which the likeliest are picked. */
    const size_t n_more = limits->may_branch ? n_nodes + n_nodes / 2 : n_nodes;
    const sl_draft_ask ask = {
        .history = s->history,
        .n = s->n_history,
        .max_nodes = n_more < SL_MAX_DRAFTS ? n_more : SL_MAX_DRAFTS,
        .max_depth = n_nodes,
        .may_branch = limits->may_branch,
        .sampler = b->sampler,
    };
    sl_draft_tree tree = {.cap = SL_MAX_DRAFTS, .nodes = s->guesses.proposed};
    const size_t n_unread = unread(b, d);
    const double start_s = sl_kv_seconds();
    sl_status status = b->drafters[d].propose(b->drafters[d].self, &ask, &tree, err);
    const double seconds = sl_kv_seconds() - start_s;
    if (status != SL_OK)
        return status;
    sl_draft_plan_drafted(&s->plan, d, (sl_draft_call){tree.n, n_unread, seconds});
    sl_guesses_join(&s->guesses, d, &tree);
    counts->n_asked[d]++;
    counts->drafter_s[d] += seconds;
    counts->draft_s += seconds;
    limits->draft_s += seconds;
    return SL_OK;
}

/* Rows of the pass, cut where the text must end anyway: a burst of n rows draws at most n tokens. */
static sl_status collect_rows(burst *b, sl_err *err)
{
    sl_session *s = b->session;
    const sl_generate_options *o = b->options;
    const size_t wanted = o->n_predict - b->result->n_tokens, room = o->n_context - s->n_history;
    const size_t most = wanted < room ? wanted : room;
    const int32_t last = s->history[s->n_history - 1];
    sl_guess_limits limits = {
        .max_nodes = o->max_drafts < most - 1 ? o->max_drafts : most - 1,
        .is_fixed = !o->draft_auto,
        .may_branch = o->may_branch && s->options.trees,
    };
    sl_guesses_start(&s->guesses, &s->plan, s->options.weights->hp.n_vocab);
    double value = sl_guesses_pick(&s->guesses, &limits, last, &s->rows);
    for (size_t d = 0; d < b->n_drafters; d++) {
        const sl_draft_terms terms = {
            .max_nodes = limits.max_nodes,
            .is_fixed = limits.is_fixed,
            .n_nodes = s->rows.n - 1,
            .value = value,
            .draft_s = limits.draft_s,
            .row_work = row_work(s, &b->drafters[d]),
            .n_unread = unread(b, d),
            .n_left = most,
        };
        size_t n_nodes = sl_draft_plan_wish(&s->plan, d, &terms);
        if (n_nodes == 0)
            continue;
        sl_status status = ask_drafter(b, d, n_nodes, &limits, err);
        if (status != SL_OK)
            return status;
        value = sl_guesses_pick(&s->guesses, &limits, last, &s->rows);
    }
    return SL_OK;
}

/* ---------------------------------------------------------------------------------------------------- verifying */

/* Rows from `row` on whose logits are computed together: those that are likely to be wanted one after the other; as
 * many as can be, where the output projection is read from flash each time. */
static size_t batch_at(const sl_session *s, size_t row)
{
    static const float likely = 0.3f;
    const size_t left = s->rows.n - row;
    if (!s->options.weights->output->packed)
        return left < SL_GRAPH_LOGIT_ROWS ? left : SL_GRAPH_LOGIT_ROWS;
    float chance = 1.0f;
    size_t n = 1;
    for (; n < SL_GRAPH_LOGIT_ROWS && row + n < s->rows.n; n++) {
        chance *= s->guesses.nodes[s->rows.guesses[row + n]].chance;
        if (s->rows.parents[row + n] != (int32_t)(row + n) - 1 || chance < likely)
            break;
    }
    return n;
}

/* The way down the tree that plain decoding takes: draws after row upon row, as long as what is drawn is a row's. */
typedef struct way {
    int32_t rows[SL_TREE_MAX_ROWS]; /* whose input is part of the text */
    size_t n;
    bool go_on;
} way;

static sl_status follow(burst *b, way *w, sl_err *err)
{
    sl_session *s = b->session;
    const size_t n_vocab = s->options.weights->hp.n_vocab;
    size_t first = 0, end = 0; /* rows whose logits are there */
    w->n = 0;
    for (int32_t row = 0; row >= 0;) {
        if ((size_t)row >= end) {
            first = (size_t)row;
            end = first + batch_at(s, first);
            sl_status status = sl_graph_logits(s->graph, first, end - first, s->logits, err);
            if (status != SL_OK && end - first > 1 && sl_graph_broke_down(s->graph)) {
                end = first + 1; /* the others may never be wanted */
                status = sl_graph_logits(s->graph, first, 1, s->logits, err);
            }
            if (status != SL_OK)
                return status;
        }
        w->rows[w->n++] = row;
        int32_t id = 0;
        w->go_on = draw_token(b, s->logits + ((size_t)row - first) * n_vocab, &id);
        row = w->go_on ? sl_burst_rows_find(&s->rows, row, id) : -1;
        b->result->n_accepted += row >= 0;
    }
    return SL_OK;
}

static sl_status pass_once(burst *b, sl_err *err)
{
    sl_session *s = b->session;
    const sl_graph_rows rows = {
        .ids = s->rows.ids,
        .parents = s->rows.is_tree ? s->rows.parents : NULL,
        .n_rows = s->rows.n,
        .first_pos = s->n_stored,
        .will_follow = b->options->n_predict - b->result->n_tokens > s->rows.n,
        .stop = sl_session_is_stopped,
        .stop_in_layer = sl_session_is_stopped,
        .arg = s,
    };
    return sl_graph_pass(s->graph, s->kv, &rows, err);
}

/* A draft may be a token that the model breaks down over, and plain decoding never looks at it: then the text's last
 * token goes alone, and that draft is not taken again. */
static sl_status pass_rows(burst *b, sl_err *err)
{
    sl_session *s = b->session;
    const sl_guess_limits no_drafts = {.max_nodes = 0};
    const sl_status status = pass_once(b, err);
    if (status == SL_OK || s->rows.n == 1 || !sl_graph_broke_down(s->graph))
        return status;
    const size_t bad_row = sl_graph_bad_row(s->graph);
    if (bad_row > 0)
        sl_guesses_bar(&s->guesses, s->rows.ids[bad_row]);
    sl_session_take_back(s, s->n_stored);
    (void)sl_guesses_pick(&s->guesses, &no_drafts, s->history[s->n_history - 1], &s->rows);
    return pass_once(b, err);
}

static sl_status run_burst(burst *b, bool *go_on, sl_err *err)
{
    sl_session *s = b->session;
    sl_draft_counts *counts = &b->result->draft;
    const size_t n_before = s->n_history;
    way w;
    sl_status status = collect_rows(b, err);
    const double start_s = sl_kv_seconds();
    if (status == SL_OK)
        status = pass_rows(b, err);
    const double passed_s = sl_kv_seconds();
    if (status == SL_OK)
        status = follow(b, &w, err);
    if (status == SL_OK)
        status = sl_graph_accept(s->graph, s->kv, s->rows.is_tree ? w.rows : NULL, w.n, err);
    if (status != SL_OK)
        return status;
    const double end_s = sl_kv_seconds();
    *go_on = w.go_on;
    s->n_stored += w.n;
    b->result->n_passes++;
    b->result->n_rows += s->rows.n;
    b->result->n_drafted += s->rows.n - 1;
    counts->pass_s += passed_s - start_s;
    counts->accept_s += end_s - passed_s;
    counts->n_tree_passes += s->rows.is_tree;
    sl_draft_plan_passed(&s->plan, s->rows.n, passed_s - start_s);
    sl_draft_plan_drawn(&s->plan, s->n_history - n_before, end_s - passed_s);
    sl_guesses_judge(&s->guesses, s->history + n_before, s->n_history - n_before, counts);
    return SL_OK;
}

static sl_status run_bursts(burst *b, sl_err *err)
{
    sl_session *s = b->session;
    s->has_logits = false;
    int32_t id = 0;
    bool go_on = draw_token(b, s->logits, &id);
    sl_status status = SL_OK;
    if (go_on)
        status = start_bursting(s, err);
    while (status == SL_OK && go_on) {
        if (sl_session_is_stopped(s)) {
            b->result->finish = SL_FINISH_CANCELLED;
            return SL_OK;
        }
        status = run_burst(b, &go_on, err);
    }
    if (status == SL_OK)
        return status;
    /* In the middle of a pass, or of accepting: what was drawn stays drawn, and stored is what was. */
    sl_session_take_back(s, s->n_stored);
    if (status == SL_CANCELLED)
        b->result->finish = SL_FINISH_CANCELLED;
    return status == SL_CANCELLED ? SL_OK : status;
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
    burst b = {.session = s, .options = options, .result = out, .drafters = s->drafters, .n_drafters = s->n_drafters};
    if (options->drafter) {
        b.drafters = options->drafter;
        b.n_drafters = 1;
        s->plan = (sl_draft_plan){0}; /* which is of the session's own */
    }
    sl_status status = sl_sampler_create(&options->sampling, s->options.weights->hp.n_vocab, s->options.kernels,
                                         s->options.budget, &b.sampler, err);
    if (status == SL_OK)
        status = run_bursts(&b, err);
    sl_sampler_destroy(b.sampler);
    return status;
}
