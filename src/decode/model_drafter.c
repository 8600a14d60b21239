#include "decode/model_drafter.h"

#include <stdlib.h>
#include <string.h>

enum {
    DEFAULT_WINDOW = 2048,
    ROWS = 256,      /* of a pass over what is new */
    N_SLOTS = 2,     /* of the cache's ring, which stays empty */
    BESIDE = 2,      /* leaves beside a draft, in a tree */
    MAPPINGS = 8     /* whose ends are rounded up */
};

static const float least_p = 1e-4f; /* a chain that is less likely ends */

typedef struct draft {
    int32_t id, parent;
    float p, path_p; /* of it after its parent; of the whole path */
    int32_t node;    /* in the tree that is given; -1: not in it */
} draft;

struct sl_model_drafter {
    sl_model_drafter_options options;
    sl_kv_layer *layers; /* [n_layers] of the geometry */
    sl_kv *kv;
    sl_graph *graph;
    float *logits;  /* [n_vocab] */
    int32_t *text;  /* [max_tokens + SL_MAX_DRAFTS + 1] the text as it was when asked last, and what was drafted */
    size_t n_text;  /* of the text, without drafts */
    size_t base;    /* the text's token that the cache's first is */
    size_t n_known; /* text[base..n_known) is in the cache */
    bool is_lost;   /* the cache could not be put right */
    size_t n_drafts;
    draft drafts[SL_MAX_DRAFTS * (BESIDE + 1)]; /* parents first */
    float ordered[SL_MAX_DRAFTS * (BESIDE + 1)];
};

static size_t window_of(const sl_model_drafter_options *o)
{
    const size_t most = o->weights->hp.n_ctx_train, wanted = o->window_tokens > 0 ? o->window_tokens : DEFAULT_WINDOW;
    return wanted < most ? wanted : most;
}

/* layers: [n_layers], filled in. */
static sl_geom geometry(const sl_hparams *hp, sl_kv_layer *layers)
{
    for (uint32_t i = 0; i < hp->n_layers; i++)
        layers[i] = sl_hparams_kv_layer(hp, i);
    return (sl_geom){hp->head_dim % SL_GROUP == 0 ? SL_KV_TYPE_Q8_0 : SL_KV_TYPE_F16, hp->n_layers, layers};
}

static sl_graph_options graph_options(const sl_model_drafter_options *o, const sl_geom *geom)
{
    return (sl_graph_options){.weights = o->weights, .kernels = o->kernels, .pool = o->pool, .budget = o->budget,
                              .geom = *geom, .max_rows = ROWS, .rope = o->rope};
}

static uint64_t bytes_with(const sl_model_drafter_options *o, sl_kv_layer *layers)
{
    const sl_geom geom = geometry(&o->weights->hp, layers);
    const sl_graph_options graph = graph_options(o, &geom);
    const size_t window = (window_of(o) + SL_PART_TOKENS - 1) / SL_PART_TOKENS * SL_PART_TOKENS;
    return sizeof(sl_model_drafter) + o->weights->hp.n_layers * sizeof *layers + sl_graph_bytes(&graph) +
           sl_kv_table_bytes(&geom, window) + window * sl_geom_token_bytes(&geom) +
           N_SLOTS * sl_geom_max_part_bytes(&geom) + o->weights->hp.n_vocab * sizeof(float) +
           (o->max_tokens + SL_MAX_DRAFTS + 1) * sizeof(int32_t) + MAPPINGS * SL_MEM_ALIGN;
}

uint64_t sl_model_drafter_bytes(const sl_model_drafter_options *o)
{
    sl_kv_layer *layers = NULL;
    if (sl_mem_new(o->budget, o->weights->hp.n_layers, sizeof *layers, "geometry", &layers, NULL) != SL_OK)
        return UINT64_MAX / 4;
    const uint64_t bytes = bytes_with(o, layers);
    sl_mem_free(o->budget, layers);
    return bytes;
}

static sl_status make_cache(sl_model_drafter *d, sl_err *err)
{
    const sl_model_drafter_options *o = &d->options;
    sl_status status = sl_mem_new(o->budget, o->weights->hp.n_layers, sizeof *d->layers, "geometry", &d->layers, err);
    if (status != SL_OK)
        return status;
    const sl_geom geom = geometry(&o->weights->hp, d->layers);
    const sl_graph_options graph = graph_options(o, &geom);
    const sl_kv_options kv = {
        .geom = geom,
        .dir = o->dir,
        .max_tokens = window_of(o),
        .resident_bytes = UINT64_MAX, /* all of it: nothing is ever written */
        .slot_bytes = sl_geom_max_part_bytes(&geom),
        .n_slots = N_SLOTS,
        .budget = o->budget,
        .stop = o->stop,
        .arg = o->arg,
    };
    status = sl_kv_create(&kv, &d->kv, err);
    return status == SL_OK ? sl_graph_create(&graph, &d->graph, err) : status;
}

sl_status sl_model_drafter_create(const sl_model_drafter_options *options, sl_model_drafter **out, sl_err *err)
{
    *out = NULL;
    sl_model_drafter *d = NULL;
    sl_status status = sl_mem_new(options->budget, 1, sizeof *d, "draft model", &d, err);
    if (status != SL_OK)
        return status;
    d->options = *options;
    status = sl_mem_new(options->budget, options->max_tokens + SL_MAX_DRAFTS + 1, sizeof *d->text, "draft model",
                        &d->text, err);
    if (status == SL_OK)
        status = sl_mem_new(options->budget, options->weights->hp.n_vocab, sizeof *d->logits, "draft model",
                            &d->logits, err);
    if (status == SL_OK)
        status = make_cache(d, err);
    if (status != SL_OK) {
        sl_model_drafter_destroy(d);
        return status;
    }
    *out = d;
    return SL_OK;
}

void sl_model_drafter_destroy(sl_model_drafter *d)
{
    if (!d)
        return;
    sl_budget *budget = d->options.budget;
    sl_kv_destroy(d->kv);
    sl_graph_destroy(d->graph);
    sl_mem_free(budget, d->layers);
    sl_mem_free(budget, d->logits);
    sl_mem_free(budget, d->text);
    sl_mem_free(budget, d);
}

/* -------------------------------------------------------------------------------------------------- the cache */

/* After a pass that was given up: text[base..n) stays in the cache. */
static void cut_back(sl_model_drafter *d, size_t n)
{
    const sl_status ended = sl_kv_pass_end(d->kv, NULL);
    (void)ended; /* SL_USAGE where none was under way */
    d->is_lost = sl_kv_truncate(d->kv, n - d->base, NULL) != SL_OK;
    d->n_known = n;
}

/* The model broke down: over a guess, which is cut off; or over a pass of the text's n tokens, behind which the cache
 * starts again, since the same pass would come to the same each time. */
static void break_off(sl_model_drafter *d, size_t n)
{
    const size_t end = n > d->n_known + ROWS ? d->n_known + ROWS : n;
    cut_back(d, d->n_known < n ? d->base : d->n_known);
    if (d->n_known < n)
        d->base = d->n_known = end;
}

/* What has grown is read when it is asked for. */
static void settled(void *self, const int32_t *history, size_t n)
{
    (void)history;
    sl_model_drafter *d = self;
    d->n_text = n < d->n_text ? n : d->n_text;
}

/* The text is history[0..n). What the cache holds of it stays, but for its last token, which is read again for its
 * logits. */
static sl_status take_text(sl_model_drafter *d, const int32_t *history, size_t n, size_t depth, sl_err *err)
{
    const size_t window = window_of(&d->options);
    settled(d, history, n);
    size_t same = d->n_known < d->n_text ? d->n_known : d->n_text;
    while (same < d->n_known && same < n && d->text[same] == history[same])
        same++;
    memcpy(d->text + d->n_text, history + d->n_text, (n - d->n_text) * sizeof *history);
    d->n_text = n;
    size_t keep = same < n - 1 ? same : n - 1;
    if (n + depth > d->base + window || keep < d->base) {
        d->base = n + depth > window ? n - window / 2 : 0;
        keep = d->base;
    }
    d->n_known = keep;
    return sl_kv_tokens(d->kv, 0) > keep - d->base ? sl_kv_truncate(d->kv, keep - d->base, err) : SL_OK;
}

/* Reads text[n_known..n) and leaves the logits of its last token. */
static sl_status read_text(sl_model_drafter *d, size_t n, sl_err *err)
{
    sl_status status = SL_OK;
    size_t rows = 0;
    while (status == SL_OK && d->n_known < n) {
        rows = n - d->n_known < ROWS ? n - d->n_known : ROWS;
        const sl_graph_rows pass = {
            .ids = d->text + d->n_known,
            .n_rows = rows,
            .first_pos = d->n_known - d->base,
            .will_follow = true,
            .stop = d->options.stop,
            .stop_in_layer = d->options.stop,
            .arg = d->options.arg,
        };
        status = sl_graph_pass(d->graph, d->kv, &pass, err);
        if (status == SL_OK)
            d->n_known += rows;
    }
    return status == SL_OK ? sl_graph_logits(d->graph, rows - 1, 1, d->logits, err) : status;
}

/* ------------------------------------------------------------------------------------------------------ drafting */

static float p_of(const sl_model_drafter *d, const sl_logprobs *logprobs, int32_t id)
{
    static const float log2_e = 1.44269504f;
    float p = sl_logprobs_get(logprobs, id) * log2_e;
    d->options.kernels->exp2(&p, &p, 1);
    return p;
}

/* Returns its index. */
static int32_t add_draft(sl_model_drafter *d, int32_t id, int32_t parent, float p)
{
    const float before = parent == SL_DRAFT_ROOT ? 1.0f : d->drafts[parent].path_p;
    d->drafts[d->n_drafts] = (draft){id, parent, p, before * p, -1};
    return (int32_t)d->n_drafts++;
}

/* The draft that follows `parent`, and where the tree may branch the next best beside it. */
static int32_t draft_one(sl_model_drafter *d, const sl_draft_ask *ask, size_t n, int32_t parent)
{
    const size_t n_vocab = d->options.weights->hp.n_vocab;
    const sl_logprobs logprobs = sl_logprobs_of(d->options.kernels, d->logits, n_vocab);
    int32_t best[BESIDE + 1];
    const size_t n_best = n_vocab < BESIDE + 1 ? n_vocab : BESIDE + 1;
    sl_logprobs_best(&logprobs, n_vocab, n_best, best);
    const int32_t id = ask->sampler ? sl_sampler_draw(ask->sampler, d->logits, d->text, n) : best[0];
    const int32_t node = add_draft(d, id, parent, p_of(d, &logprobs, id));
    for (size_t i = 0, n_beside = 0; ask->may_branch && i < n_best && n_beside < BESIDE; i++)
        if (best[i] != id) {
            (void)add_draft(d, best[i], parent, p_of(d, &logprobs, best[i]));
            n_beside++;
        }
    return node;
}

static int by_falling_p(const void *a, const void *b)
{
    const float x = *(const float *)a, y = *(const float *)b;
    return x < y ? 1 : x > y ? -1 : 0;
}

/* The path probability of the n-th likeliest draft; 0: there are fewer. */
static float nth_p(sl_model_drafter *d, size_t n)
{
    if (d->n_drafts <= n)
        return 0.0f;
    for (size_t i = 0; i < d->n_drafts; i++)
        d->ordered[i] = d->drafts[i].path_p;
    qsort(d->ordered, d->n_drafts, sizeof *d->ordered, by_falling_p);
    return d->ordered[n - 1];
}

/* The n likeliest. No draft is likelier than what it follows, which stands before it: none is without its parent. */
static void give(sl_model_drafter *d, size_t n, sl_draft_tree *tree)
{
    const float least = nth_p(d, n);
    size_t n_above = 0;
    for (size_t i = 0; i < d->n_drafts; i++)
        n_above += d->drafts[i].path_p > least;
    size_t n_equal = n - n_above; /* of those that are as likely as the least there is room for so many */
    for (size_t i = 0; i < d->n_drafts && tree->n < n; i++) {
        draft *one = &d->drafts[i];
        one->node = -1;
        if (one->path_p < least || (one->path_p == least && n_equal == 0))
            continue;
        n_equal -= one->path_p == least;
        one->node = (int32_t)tree->n;
        sl_draft_tree_add(tree, one->id, one->parent == SL_DRAFT_ROOT ? SL_DRAFT_ROOT : d->drafts[one->parent].node,
                          one->p);
    }
}

/* A chain of draws, until it is less likely than all that there is room for. */
static sl_status draft_chain(sl_model_drafter *d, const sl_draft_ask *ask, size_t most, sl_err *err)
{
    int32_t parent = SL_DRAFT_ROOT;
    sl_status status = SL_OK;
    d->n_drafts = 0;
    for (size_t n = ask->n, depth = 0; status == SL_OK && depth < ask->max_depth && depth < most; depth++) {
        status = read_text(d, n, err);
        if (status != SL_OK && sl_graph_broke_down(d->graph)) { /* what was drafted before it stays */
            break_off(d, ask->n);
            return SL_OK;
        }
        if (status != SL_OK)
            return status;
        parent = draft_one(d, ask, n, parent);
        d->text[n++] = d->drafts[parent].id;
        if (d->drafts[parent].path_p < least_p || d->drafts[parent].path_p < nth_p(d, most))
            break;
    }
    return status;
}

static sl_status propose(void *self, const sl_draft_ask *ask, sl_draft_tree *tree, sl_err *err)
{
    sl_model_drafter *d = self;
    size_t most = ask->max_nodes < tree->cap ? ask->max_nodes : tree->cap;
    most = most < SL_MAX_DRAFTS ? most : SL_MAX_DRAFTS;
    const size_t deep = ask->max_depth < most ? ask->max_depth : most, window = window_of(&d->options);
    sl_draft_ask own = *ask;
    own.max_depth = deep < window / 4 ? deep : window / 4;
    if (d->is_lost || ask->n == 0 || ask->n > d->options.max_tokens || own.max_depth == 0)
        return SL_OK;
    sl_status status = take_text(d, ask->history, ask->n, own.max_depth, err);
    if (status == SL_OK)
        status = draft_chain(d, &own, most, err);
    if (status == SL_OK)
        give(d, most, tree);
    else
        cut_back(d, d->base);
    return status;
}

static size_t unread(const void *self, size_t n)
{
    const sl_model_drafter *d = self;
    const size_t window = window_of(&d->options), known = d->n_known < d->n_text ? d->n_known : d->n_text;
    const size_t new_tokens = n > known ? n - known : 0;
    return n > d->base + window || new_tokens > window ? (n < window ? n : window / 2) : new_tokens;
}

sl_drafter sl_model_drafter_drafter(sl_model_drafter *drafter)
{
    return (sl_drafter){.name = "model",
                        .propose = propose,
                        .settled = settled,
                        .self = drafter,
                        .row_bytes = drafter->options.weight_bytes,
                        .unread = unread};
}
