#include "decode/self_drafter.h"

#include <assert.h>
#include <math.h>
#include <string.h>

#include "attn/hot_attend.h"
#include "decode/sampler.h"

/* One step of the chain. */
typedef struct step {
    int32_t id, second; /* what is drawn; the best of the others */
    float p, p_second;  /* softmax at temperature 1 */
} step;

struct sl_self {
    sl_self_options options;
    sl_hot *hot;
    sl_hot_attend *attend;
    sl_graph *graph;
    const sl_kv *kv;
    float *logits; /* [n_vocab] */
    /* [max_tokens + 1 + max_depth] the text and what is drafted behind it; the first n_known are the history's */
    int32_t *text;
    size_t n_known;
    step *steps; /* [max_depth] of the proposal */
    size_t n_steps;
    /* own tile groups: the text's unfilled one, then the draft's */
    size_t n_groups, own_bytes;
    uint8_t *own;       /* [n_layers] n_groups each, at own_off */
    uint64_t own_pos;   /* of the first group */
    uint64_t draft_pos; /* of the row being computed */
};

static size_t layer_off(const sl_self *self, uint32_t layer)
{
    size_t off = 0;
    for (uint32_t i = 0; i < layer; i++)
        off += self->n_groups * sl_geom_group_bytes(&self->options.geom, i);
    return off;
}

static sl_hot_options hot_options(const sl_self_options *o)
{
    return (sl_hot_options){
        .kernels = o->kernels,
        .pool = o->pool,
        .budget = o->budget,
        .geom = o->geom,
        .n_heads = o->weights->hp.n_heads,
        .max_tokens = o->max_tokens,
        .hot_tokens = o->hot_tokens,
        .policy = o->policy,
    };
}

static sl_attn_options attend_options(const sl_self_options *o)
{
    return (sl_attn_options){
        .kernels = o->kernels,
        .pool = o->pool,
        .budget = o->budget,
        .geom = o->geom,
        .n_heads = o->weights->hp.n_heads,
        .max_rows = 1,
        .scale = o->weights->hp.attn_scale,
        .softcap = o->weights->hp.attn_softcap,
    };
}

static sl_status attend(void *arg, const sl_attn_rows *rows, sl_err *err)
{
    (void)err;
    sl_self *self = arg;
    sl_hot_attend_run(self->attend, self->hot, rows, self->own + layer_off(self, rows->layer), self->own_pos);
    return SL_OK;
}

/* Where the row's key and value go: the group of its position. */
static uint8_t *own(void *arg, uint32_t layer)
{
    const sl_self *self = arg;
    const size_t group = (size_t)((self->draft_pos - self->own_pos) / SL_TILE);
    return self->own + layer_off(self, layer) + group * sl_geom_group_bytes(&self->options.geom, layer);
}

static sl_graph_options graph_options(const sl_self_options *o, sl_self *self)
{
    return (sl_graph_options){
        .weights = o->weights,
        .kernels = o->kernels,
        .pool = o->pool,
        .budget = o->budget,
        .geom = o->geom,
        .max_rows = 1,
        .staged = true,
        .rope = o->rope,
        .attend = attend,
        .own = own,
        .attend_arg = self,
    };
}

static void measure(const sl_self_options *options, sl_self *self)
{
    self->options = *options;
    self->n_groups = (SL_TILE - 1 + options->max_depth + SL_TILE - 1) / SL_TILE;
    self->own_bytes = layer_off(self, options->geom.n_layers);
}

static size_t n_text(const sl_self_options *o)
{
    return o->max_tokens + 1 + o->max_depth;
}

uint64_t sl_self_bytes(const sl_self_options *options)
{
    sl_self self = {0};
    measure(options, &self);
    const sl_hot_options hot = hot_options(options);
    const sl_attn_options attn = attend_options(options);
    const sl_graph_options graph = graph_options(options, &self);
    return sl_hot_bytes(&hot) + sl_hot_attend_bytes(&attn) + sl_graph_bytes(&graph) + self.own_bytes + SL_MEM_ALIGN +
           options->weights->hp.n_vocab * sizeof(float) + n_text(options) * sizeof(int32_t) +
           options->max_depth * sizeof(step) + sizeof self + 256;
}

static sl_status make(sl_self *self, sl_err *err)
{
    const sl_self_options *o = &self->options;
    const sl_hot_options hot = hot_options(o);
    const sl_attn_options attn = attend_options(o);
    const sl_graph_options graph = graph_options(o, self);
    sl_status status = sl_hot_create(&hot, &self->hot, err);
    if (status == SL_OK)
        status = sl_hot_attend_create(&attn, &self->attend, err);
    if (status == SL_OK)
        status = sl_graph_create(&graph, &self->graph, err);
    if (status == SL_OK)
        status = sl_mem_new(o->budget, o->weights->hp.n_vocab, sizeof *self->logits, "draft", &self->logits, err);
    if (status == SL_OK)
        status = sl_mem_new(o->budget, n_text(o), sizeof *self->text, "draft", &self->text, err);
    if (status == SL_OK)
        status = sl_mem_new(o->budget, o->max_depth, sizeof *self->steps, "draft", &self->steps, err);
    if (status == SL_OK)
        status = sl_mem_map(o->budget, self->own_bytes, "draft", &self->own, err);
    return status;
}

sl_status sl_self_create(const sl_self_options *options, sl_self **out, sl_err *err)
{
    *out = NULL;
    sl_self *self = NULL;
    assert(options->max_depth > 0);
    sl_status status = sl_mem_new(options->budget, 1, sizeof *self, "self drafter", &self, err);
    if (status != SL_OK)
        return status;
    measure(options, self);
    status = make(self, err);
    if (status != SL_OK) {
        sl_self_destroy(self);
        return status;
    }
    *out = self;
    return SL_OK;
}

void sl_self_destroy(sl_self *self)
{
    if (!self)
        return;
    sl_budget *budget = self->options.budget;
    sl_mem_unmap(budget, self->own, self->own_bytes);
    sl_mem_free(budget, self->steps);
    sl_mem_free(budget, self->text);
    sl_mem_free(budget, self->logits);
    sl_graph_destroy(self->graph);
    sl_hot_attend_destroy(self->attend);
    sl_hot_destroy(self->hot);
    sl_mem_free(budget, self);
}

sl_hot *sl_self_hot(const sl_self *self)
{
    return self->hot;
}

void sl_self_bind(sl_self *self, const sl_kv *kv)
{
    self->kv = kv;
}

/* --------------------------------------------------------------------------------------------------------- drafting */

/* The own groups begin with the text's unfilled one. False: the text stored is another than the one asked about. */
static bool start_draft(sl_self *self, size_t n_history)
{
    const uint64_t n_stored = n_history - 1;
    for (uint32_t layer = 0; layer < self->options.geom.n_layers; layer++) {
        uint32_t n_tail = 0;
        const uint8_t *tail = sl_kv_tail(self->kv, layer, &n_tail);
        if (sl_kv_tokens(self->kv, layer) != n_stored)
            return false;
        if (n_tail > 0)
            memcpy(self->own + layer_off(self, layer), tail, sl_geom_group_bytes(&self->options.geom, layer));
    }
    self->own_pos = n_stored / SL_TILE * SL_TILE;
    self->draft_pos = n_stored;
    return true;
}

/* One row: the logits of what follows the token. */
static sl_status compute(sl_self *self, int32_t id, sl_err *err)
{
    const sl_graph_rows rows = {
        .ids = &id, .n_rows = 1, .first_pos = self->draft_pos, .stop = self->options.stop, .arg = self->options.arg};
    sl_status status = sl_graph_pass(self->graph, NULL, &rows, err);
    if (status == SL_OK)
        status = sl_graph_logits(self->graph, 0, 1, self->logits, err);
    self->draft_pos++;
    return status;
}

sl_status sl_self_follow(sl_self *self, const int32_t *ids, size_t n, size_t n_history,
                         void (*note)(void *arg, size_t i, const float *logits), void *arg, sl_err *err)
{
    assert(n <= self->options.max_depth);
    if (!start_draft(self, n_history))
        return sl_err_set(err, SL_USAGE, "the context does not hold the text's tokens but the last");
    sl_status status = SL_OK;
    for (size_t i = 0; status == SL_OK && i < n; i++) {
        status = compute(self, ids[i], err);
        if (status == SL_OK)
            note(arg, i, self->logits);
    }
    return status;
}

/* That a guess of softmax probability p is drawn: half way from p to one. The likeliest token is the same with the
 * whole context far more often than the draft is sure of it (bench_drafts: 0.93 at a mean p of 0.66). Who chooses rows
 * learns the rest. */
static float estimate(float p)
{
    return 0.5f + 0.5f * p;
}

static float softmax(const sl_kernels *kernels, const sl_logprobs *logprobs, int32_t id)
{
    float p = sl_logprobs_get(logprobs, id) * SL_LOG2E;
    kernels->exp2(&p, &p, 1);
    return p;
}

/* Draws from the logits as the burst will, with the same number for the position; and takes the best of the others. */
static step draw(sl_self *self, const sl_draft_ask *ask, size_t n)
{
    const size_t n_vocab = self->options.weights->hp.n_vocab;
    const sl_kernels *kernels = self->options.kernels;
    step s = {0};
    s.id = ask->sampler ? sl_sampler_draw(ask->sampler, self->logits, self->text, n)
                        : (int32_t)kernels->argmax(self->logits, n_vocab);
    const sl_logprobs logprobs = sl_logprobs_of(kernels, self->logits, n_vocab);
    s.p = softmax(kernels, &logprobs, s.id);
    if (!ask->may_branch || n_vocab < 2)
        return s;
    const float kept = self->logits[s.id];
    self->logits[s.id] = -INFINITY;
    s.second = (int32_t)kernels->argmax(self->logits, n_vocab);
    self->logits[s.id] = kept;
    s.p_second = softmax(kernels, &logprobs, s.second);
    return s;
}

static sl_status draw_steps(sl_self *self, const sl_draft_ask *ask, size_t depth, sl_err *err)
{
    while (self->n_steps < depth) {
        const size_t n = ask->n + self->n_steps;
        sl_status status = compute(self, self->text[n - 1], err);
        if (status != SL_OK && sl_graph_broke_down(self->graph)) /* a guess that came to nothing */
            break;
        if (status != SL_OK)
            return status;
        self->steps[self->n_steps] = draw(self, ask, n);
        self->text[n] = self->steps[self->n_steps++].id;
    }
    return SL_OK;
}

/* The chain; then, where there is room, second choices: those likeliest to be met and drawn first. */
static void add_nodes(const sl_self *self, const sl_draft_ask *ask, sl_draft_tree *tree)
{
    for (size_t i = 0; i < self->n_steps; i++)
        sl_draft_tree_add(tree, self->steps[i].id, (int32_t)i - 1, estimate(self->steps[i].p));
    float below = INFINITY;
    while (ask->may_branch && tree->n < ask->max_nodes) {
        float best = 0.0f, best_p = 0.0f, met = 1.0f;
        size_t at = self->n_steps;
        for (size_t i = 0; i < self->n_steps; i++) {
            const step *s = &self->steps[i];
            const float p = s->p < 1.0f ? (1.0f - tree->nodes[i].p) * s->p_second / (1.0f - s->p) : 0.0f;
            if (met * p > best && met * p < below) {
                best = met * p;
                best_p = p;
                at = i;
            }
            met *= tree->nodes[i].p;
        }
        if (at == self->n_steps)
            break;
        sl_draft_tree_add(tree, self->steps[at].second, (int32_t)at - 1, best_p);
        below = best;
    }
}

static sl_status propose(void *arg, const sl_draft_ask *ask, sl_draft_tree *tree, sl_err *err)
{
    sl_self *self = arg;
    size_t depth = ask->max_depth < ask->max_nodes ? ask->max_depth : ask->max_nodes;
    depth = depth < self->options.max_depth ? depth : self->options.max_depth;
    self->n_steps = 0;
    if (ask->n == 0 || ask->n > self->options.max_tokens + 1 || depth == 0 || !start_draft(self, ask->n))
        return SL_OK;
    self->n_known = self->n_known < ask->n ? self->n_known : ask->n;
    memcpy(self->text + self->n_known, ask->history + self->n_known, (ask->n - self->n_known) * sizeof *self->text);
    self->n_known = ask->n;
    sl_status status = draw_steps(self, ask, depth, err);
    if (status == SL_OK)
        add_nodes(self, ask, tree);
    return status;
}

static void settled(void *arg, const int32_t *history, size_t n)
{
    (void)history;
    sl_self *self = arg;
    self->n_known = self->n_known < n ? self->n_known : n;
    sl_hot_settle(self->hot, n);
}

sl_drafter sl_self_drafter(sl_self *self)
{
    return (sl_drafter){.name = "self", .propose = propose, .settled = settled, .self = self};
}
