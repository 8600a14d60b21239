/* Bursts: the last token and its drafts in one pass; every position is drawn as plain decoding would. */
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
    sl_drafter drafter;
    int32_t *ids; /* [max_drafts + 1] the last token and its drafts */
    sl_draft_tree tree; /* [max_drafts] */
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

/* The last token and its drafts, cut where the text must end anyway: a burst of n rows draws at most n tokens. */
static sl_status collect_rows(burst *b, size_t *n_rows, sl_err *err)
{
    sl_session *s = b->session;
    const sl_generate_options *o = b->options;
    size_t wanted = o->n_predict - b->result->n_tokens, room = o->n_context - s->n_history;
    size_t most = wanted < room ? wanted : room;
    size_t max = o->max_drafts < most - 1 ? o->max_drafts : most - 1;
    b->ids[0] = s->history[s->n_history - 1];
    *n_rows = 1;
    if (max == 0 || !b->drafter.propose)
        return SL_OK;
    const sl_draft_ask ask = {
        .history = s->history, .n = s->n_history, .max_nodes = max, .max_depth = max, .sampler = b->sampler};
    b->tree.n = 0;
    sl_status status = b->drafter.propose(b->drafter.self, &ask, &b->tree, err);
    /* A drafter may guess nonsense: ids that do not exist cannot be computed, and so end the chain. */
    for (size_t i = 0; i < b->tree.n; i++) {
        int32_t id = b->tree.nodes[i].id;
        if (id < 0 || (uint32_t)id >= s->options.weights->hp.n_vocab)
            break;
        b->ids[(*n_rows)++] = id;
    }
    b->result->n_drafted += *n_rows - 1;
    return status;
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
        int32_t id = 0;
        *go_on = draw_token(b, s->logits + in_batch * n_vocab, &id);
        if (!*go_on || row + 1 == n_rows || b->ids[row + 1] != id)
            break;
        b->result->n_accepted++;
    }
    return SL_OK;
}

static sl_status run_burst(burst *b, bool *go_on, sl_err *err)
{
    sl_session *s = b->session;
    size_t n_rows = 1, n_kept = 0;
    sl_status status = collect_rows(b, &n_rows, err);
    if (status != SL_OK)
        return status;
    sl_graph_rows rows = {
        .ids = b->ids,
        .n_rows = n_rows,
        .first_pos = s->n_stored,
        .will_follow = b->options->n_predict - b->result->n_tokens > n_rows,
        .stop = sl_session_is_stopped,
        .stop_in_layer = sl_session_is_stopped,
        .arg = s,
    };
    status = sl_graph_pass(s->graph, s->kv, &rows, err);
    if (status == SL_OK)
        status = verify_rows(b, n_rows, &n_kept, go_on, err);
    if (status == SL_OK)
        status = sl_graph_accept(s->graph, s->kv, NULL, n_kept, err);
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
    burst b = {.session = s, .options = options, .result = out};
    if (options->drafter)
        b.drafter = *options->drafter;
    else if (s->ngram)
        b.drafter = sl_ngram_drafter(s->ngram);
    sl_status status = sl_sampler_create(&options->sampling, s->options.weights->hp.n_vocab, s->options.kernels,
                                         s->options.budget, &b.sampler, err);
    if (status == SL_OK)
        status = sl_mem_new(s->options.budget, options->max_drafts + 1, sizeof *b.ids, "drafts", &b.ids, err);
    b.tree.cap = options->max_drafts;
    if (status == SL_OK)
        status = sl_mem_new(s->options.budget, options->max_drafts + 1, sizeof *b.tree.nodes, "drafts", &b.tree.nodes,
                            err);
    if (status == SL_OK)
        status = run_bursts(&b, err);
    sl_mem_free(s->options.budget, b.tree.nodes);
    sl_mem_free(s->options.budget, b.ids);
    sl_sampler_destroy(b.sampler);
    return status;
}
