/* How often the self drafter (src/decode/self_drafter.c) guesses the model's next token, over a context of real text:
 * the hot set as harvested, against sets of the same size of recent tiles, of the first and recent ones, and of the
 * first, recent and random ones.
 *
 *   bench_drafts MODEL TEXT [context=7168] [hot=2048] [tokens=512] [depth=16] [start=0] [real=0] [repeats=15]
 *                [policies=4] [kv=q8_0] [linear=1] [yarn=1]
 *
 * The context is `context` tokens of the text from token `start` on. The tokens after it are those that the model draws
 * at temperature 0 (real=1: the text's own go on), and every row's next token is the model's likeliest. They are passed
 * in bursts of `depth` rows, all accepted; before each, the drafter is led along the same rows, and its likeliest
 * next token is compared: depth d is its d-th row since it saw a pass. Two passes before the first burst fill the hot
 * set. policies=N: only the first N of the four. linear=N, yarn=N: positions are stretched N times, so. How well the
 * model follows the text is told, too: the mean log-probability of each row's next token.
 *
 * Then what harvesting costs: passes of one row, and of `depth` rows, with and without a hot set, in turn, each of
 * other tokens; `repeats` of each, processor time (not for a loaded machine's wall clock), the plan made anew included.
 * Told are the medians, and the median of the pairs' ratios, which what else the machine does disturbs least.
 *
 * CSV on stdout: policy,context,hot,depth,n,agree,share,mean_p,run,draft_s,pass_s,logprob; depth 0 is all depths; run
 * is the mean number of rows, of depth - 1, that agree before the first that does not. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "api/engine.h"
#include "decode/sampler.h"
#include "api/store.h"
#include "decode/self_drafter.h"
#include "platform/os.h"

enum { MAX_DEPTH = 64, WINDOW_ROWS = 1024, N_POLICIES = 4 };

typedef struct settings {
    size_t context, hot, tokens, depth, start, real, repeats, policies, linear, yarn;
    sl_kv_type type;
} settings;

typedef struct world {
    settings s;
    sl_engine *engine;
    sl_kv_layer *layers;
    sl_geom geom;
    sl_rope rope;
    sl_kv *kv;
    int32_t *ids;  /* [context + tokens + 1] */
    float *logits; /* [SL_GRAPH_LOGIT_ROWS][n_vocab] */
    /* of the burst */
    int32_t guesses[MAX_DEPTH];
    float p[MAX_DEPTH];
} world;

static sl_err error;

static void must(sl_status status)
{
    if (status == SL_OK)
        return;
    fprintf(stderr, "bench_drafts: %s\n", error.text);
    exit(1);
}

static sl_graph *make_graph(const world *w, size_t rows, bool staged, sl_hot *hot)
{
    const sl_graph_options options = {.weights = w->engine->weights,
                                      .kernels = &w->engine->kernels,
                                      .pool = w->engine->pool,
                                      .budget = &w->engine->budget,
                                      .geom = w->geom,
                                      .max_rows = rows,
                                      .staged = staged,
                                      .hot = hot,
                                      .rope = w->rope};
    sl_graph *graph = NULL;
    must(sl_graph_create(&options, &graph, &error));
    return graph;
}

static void pass(const world *w, sl_graph *graph, size_t first, size_t n)
{
    const sl_graph_rows rows = {.ids = w->ids + first, .n_rows = n, .first_pos = first, .will_follow = true};
    must(sl_graph_pass(graph, w->kv, &rows, &error));
}

static char *read_file(const char *path, size_t *size)
{
    FILE *file = fopen(path, "rb");
    if (!file) {
        perror(path);
        exit(1);
    }
    size_t cap = (size_t)1 << 24;
    char *text = malloc(cap);
    *size = text ? fread(text, 1, cap, file) : 0;
    fclose(file);
    return text;
}

static void open_world(world *w, const char *model, const char *path)
{
    const sl_engine_options options = {.model_path = model};
    must(sl_engine_open(&options, &w->engine, &error));
    size_t size = 0;
    char *text = read_file(path, &size);
    sl_ids list = {0};
    must(sl_tok_encode(w->engine->tok, text, size, false, &list, NULL, &error));
    free(text);
    const size_t n = w->s.context + (w->s.real ? w->s.tokens + 1 : 0);
    if (list.n < w->s.start + n) {
        fprintf(stderr, "bench_drafts: %s has %zu tokens, expected %zu\n", path, list.n, w->s.start + n);
        exit(1);
    }
    w->ids = calloc(w->s.context + w->s.tokens + 1, sizeof *w->ids);
    w->logits = malloc((size_t)SL_GRAPH_LOGIT_ROWS * w->engine->hp.n_vocab * sizeof *w->logits);
    w->layers = calloc(w->engine->hp.n_layers, sizeof *w->layers);
    if (!w->ids || !w->logits || !w->layers)
        exit(1);
    memcpy(w->ids, list.ids + w->s.start, n * sizeof *w->ids);
    sl_ids_deinit(&list, &w->engine->budget);
    for (uint32_t i = 0; i < w->engine->hp.n_layers; i++)
        w->layers[i] = sl_hparams_kv_layer(&w->engine->hp, i);
    sl_context_options context = {.rope_scale = 0.0};
    if (w->s.linear > 1 || w->s.yarn > 1) {
        context.rope.scaling = w->s.yarn > 1 ? SL_ROPE_SCALING_YARN : SL_ROPE_SCALING_LINEAR;
        context.rope_scale = (double)(w->s.yarn > 1 ? w->s.yarn : w->s.linear);
    }
    w->rope = sl_engine_rope(w->engine, &context);
    w->geom = (sl_geom){w->s.type, w->engine->hp.n_layers, w->layers};
    const sl_kv_options kv = {.geom = w->geom,
                              .dir = "/var/tmp",
                              .max_tokens = w->s.context + w->s.tokens,
                              .resident_bytes = UINT64_MAX / 4,
                              .slot_bytes = sl_geom_max_part_bytes(&w->geom),
                              .n_slots = 2,
                              .budget = &w->engine->budget};
    must(sl_kv_create(&kv, &w->kv, &error));
}

/* The context, then the model's own tokens, each by plain decoding; the context alone stays. */
static void prepare(world *w)
{
    sl_graph *graph = make_graph(w, WINDOW_ROWS, false, NULL);
    for (size_t at = 0; at < w->s.context;) {
        const size_t left = w->s.context - at, n = left < WINDOW_ROWS ? left : WINDOW_ROWS;
        pass(w, graph, at, n);
        at += n;
        if (at == w->s.context && !w->s.real) {
            must(sl_graph_logits(graph, n - 1, 1, w->logits, &error));
            w->ids[at] = (int32_t)w->engine->kernels.argmax(w->logits, w->engine->hp.n_vocab);
        }
        fprintf(stderr, "\r%zu of %zu tokens read", at, w->s.context);
    }
    sl_graph_destroy(graph);
    graph = make_graph(w, 1, true, NULL);
    for (size_t i = w->s.context; !w->s.real && i < w->s.context + w->s.tokens; i++) {
        pass(w, graph, i, 1);
        must(sl_graph_accept(graph, w->kv, NULL, 1, &error));
        must(sl_graph_logits(graph, 0, 1, w->logits, &error));
        w->ids[i + 1] = (int32_t)w->engine->kernels.argmax(w->logits, w->engine->hp.n_vocab);
    }
    sl_graph_destroy(graph);
    must(sl_kv_truncate(w->kv, w->s.context, &error));
    fprintf(stderr, "\n");
    for (size_t i = w->s.context; i < w->s.context + w->s.tokens; i++) {
        const sl_tok_text t = sl_tok_bytes(w->engine->tok, w->ids[i], true);
        fprintf(stderr, "%.*s", (int)t.size, t.data);
    }
    fprintf(stderr, "\n");
}

static void note(void *arg, size_t i, const float *logits)
{
    world *w = arg;
    w->guesses[i] = (int32_t)w->engine->kernels.argmax(logits, w->engine->hp.n_vocab);
    const sl_logprobs logprobs = sl_logprobs_of(&w->engine->kernels, logits, w->engine->hp.n_vocab);
    w->p[i] = sl_logprobs_get(&logprobs, w->guesses[i]) * SL_LOG2E;
    w->engine->kernels.exp2(&w->p[i], &w->p[i], 1);
}

typedef struct tally {
    size_t n[MAX_DEPTH], agree[MAX_DEPTH], bursts, run;
    double p[MAX_DEPTH], draft_s, pass_s, logprob;
} tally;

/* The rows of ids[at..at + n). */
static void compare(world *w, sl_graph *graph, size_t at, size_t n, tally *t)
{
    bool runs = true;
    for (size_t i = 0; i < n; i++) {
        const size_t in_batch = i % SL_GRAPH_LOGIT_ROWS, n_vocab = w->engine->hp.n_vocab;
        if (in_batch == 0)
            must(sl_graph_logits(graph, i, n - i < SL_GRAPH_LOGIT_ROWS ? n - i : SL_GRAPH_LOGIT_ROWS, w->logits,
                                 &error));
        const float *logits = w->logits + in_batch * n_vocab;
        const int32_t id = (int32_t)w->engine->kernels.argmax(logits, n_vocab);
        const sl_logprobs logprobs = sl_logprobs_of(&w->engine->kernels, logits, n_vocab);
        t->logprob += (double)sl_logprobs_get(&logprobs, w->ids[at + i + 1]);
        const bool agrees = id == w->guesses[i];
        t->n[i]++;
        t->agree[i] += agrees;
        t->p[i] += (double)w->p[i];
        runs = runs && agrees && i + 1 < n;
        t->run += runs;
    }
    t->bursts++;
}

static sl_self *make_self(const world *w, sl_hot_policy policy)
{
    const sl_self_options options = {.weights = w->engine->weights,
                                     .kernels = &w->engine->kernels,
                                     .pool = w->engine->pool,
                                     .budget = &w->engine->budget,
                                     .geom = w->geom,
                                     .max_tokens = w->s.context + w->s.tokens,
                                     .hot_tokens = w->s.hot,
                                     .max_depth = w->s.depth,
                                     .policy = policy,
                                     .rope = w->rope};
    sl_self *self = NULL;
    must(sl_self_create(&options, &self, &error));
    sl_self_bind(self, w->kv);
    sl_drafter drafter = sl_self_drafter(self);
    drafter.settled(drafter.self, w->ids, w->s.context);
    return self;
}

static void measure(world *w, sl_hot_policy policy, tally *t)
{
    sl_self *self = make_self(w, policy);
    sl_graph *graph = make_graph(w, w->s.depth, true, sl_self_hot(self));
    for (int i = 0; i < 2; i++) {
        pass(w, graph, w->s.context, w->s.depth);
        must(sl_graph_accept(graph, w->kv, NULL, 0, &error));
    }
    for (size_t at = w->s.context; at + w->s.depth <= w->s.context + w->s.tokens; at += w->s.depth) {
        const double start_s = sl_os_seconds();
        must(sl_self_follow(self, w->ids + at, w->s.depth, at + 1, note, w, &error));
        const double middle_s = sl_os_seconds();
        pass(w, graph, at, w->s.depth);
        t->draft_s += middle_s - start_s;
        t->pass_s += sl_os_seconds() - middle_s;
        compare(w, graph, at, w->s.depth, t);
        must(sl_graph_accept(graph, w->kv, NULL, w->s.depth, &error));
    }
    sl_graph_destroy(graph);
    sl_self_destroy(self);
    must(sl_kv_truncate(w->kv, w->s.context, &error));
}

static double pass_cost(const world *w, sl_graph *graph, size_t n, size_t i)
{
    const size_t from = w->s.context + i % (w->s.tokens - n + 1);
    const sl_graph_rows rows = {.ids = w->ids + from, .n_rows = n, .first_pos = w->s.context, .will_follow = true};
    const clock_t start = clock();
    must(sl_graph_pass(graph, w->kv, &rows, &error));
    must(sl_graph_accept(graph, w->kv, NULL, 0, &error));
    return (double)(clock() - start) / CLOCKS_PER_SEC;
}

static int by_size(const void *a, const void *b)
{
    const double x = *(const double *)a, y = *(const double *)b;
    return x < y ? -1 : x > y;
}

static double middle_of(double *values, size_t n)
{
    qsort(values, n, sizeof *values, by_size);
    return values[n / 2];
}

static void measure_cost(world *w, size_t n_rows)
{
    sl_self *self = make_self(w, SL_HOT_HARVESTED);
    sl_graph *graphs[2] = {make_graph(w, n_rows, true, NULL), make_graph(w, n_rows, true, sl_self_hot(self))};
    const size_t n = w->s.repeats;
    double *took[2] = {calloc(n, sizeof(double)), calloc(n, sizeof(double))}, *ratios = calloc(n, sizeof *ratios);
    if (!took[0] || !took[1] || !ratios)
        exit(1);
    for (size_t i = 0; i < n; i++) {
        for (size_t k = 0; k < 2; k++) /* each first as often as the other */
            took[(i + k) % 2][i] = pass_cost(w, graphs[(i + k) % 2], n_rows, 5 * i);
        ratios[i] = took[1][i] / took[0][i];
    }
    const double ratio = middle_of(ratios, n), without = middle_of(took[0], n), with = middle_of(took[1], n);
    printf("# harvest: %zu rows: %.2f ms (%.2f to %.2f) without, %.2f ms (%.2f to %.2f) with: %+.2f %%; pairs %+.2f %% "
           "(half of them %+.2f to %+.2f)\n",
           n_rows, without * 1e3, took[0][0] * 1e3, took[0][n - 1] * 1e3, with * 1e3, took[1][0] * 1e3,
           took[1][n - 1] * 1e3, (with / without - 1.0) * 100.0, (ratio - 1.0) * 100.0, (ratios[n / 4] - 1.0) * 100.0,
           (ratios[n - 1 - n / 4] - 1.0) * 100.0);
    free(ratios);
    for (size_t k = 0; k < 2; k++) {
        free(took[k]);
        sl_graph_destroy(graphs[k]);
    }
    sl_self_destroy(self);
}

static void print(const world *w, const char *policy, const tally *t)
{
    size_t n = 0, agree = 0;
    double p = 0.0;
    for (size_t i = 0; i < w->s.depth; i++) {
        n += t->n[i];
        agree += t->agree[i];
        p += t->p[i];
    }
    printf("%s,%zu,%zu,0,%zu,%zu,%.4f,%.4f,%.2f,%.2f,%.2f,%.3f\n", policy, w->s.context, w->s.hot, n, agree,
           (double)agree / (double)n, p / (double)n, (double)t->run / (double)t->bursts, t->draft_s, t->pass_s,
           t->logprob / (double)n);
    for (size_t i = 0; i < w->s.depth; i++)
        printf("%s,%zu,%zu,%zu,%zu,%zu,%.4f,%.4f,,,,\n", policy, w->s.context, w->s.hot, i + 1, t->n[i], t->agree[i],
               (double)t->agree[i] / (double)t->n[i], t->p[i] / (double)t->n[i]);
    fflush(stdout);
}

static void read_settings(settings *s, int n, char **args)
{
    struct {
        const char *name;
        size_t *value;
    } known[] = {{"context=", &s->context}, {"hot=", &s->hot},          {"tokens=", &s->tokens},
                 {"depth=", &s->depth},     {"start=", &s->start},      {"real=", &s->real},
                 {"repeats=", &s->repeats}, {"policies=", &s->policies},
                 {"linear=", &s->linear},   {"yarn=", &s->yarn}};
    for (int i = 0; i < n; i++) {
        bool found = strcmp(args[i], "kv=f16") == 0 || strcmp(args[i], "kv=q8_0") == 0;
        if (strcmp(args[i], "kv=f16") == 0)
            s->type = SL_KV_TYPE_F16;
        for (size_t k = 0; k < sizeof known / sizeof known[0]; k++)
            if (strncmp(args[i], known[k].name, strlen(known[k].name)) == 0) {
                *known[k].value = (size_t)strtoull(args[i] + strlen(known[k].name), NULL, 10);
                found = true;
            }
        if (!found) {
            fprintf(stderr, "bench_drafts: what is %s?\n", args[i]);
            exit(2);
        }
    }
}

int main(int argc, char **argv)
{
    static world w = {.s = {7168, 2048, 512, 16, 0, 0, 15, N_POLICIES, 1, 1, SL_KV_TYPE_Q8_0}};
    if (argc < 3) {
        fprintf(stderr, "usage: bench_drafts MODEL TEXT [setting=value ...]\n");
        return 2;
    }
    read_settings(&w.s, argc - 3, argv + 3);
    if (w.s.depth < 1 || w.s.depth > MAX_DEPTH || w.s.tokens < w.s.depth || w.s.context < 1) {
        fprintf(stderr, "bench_drafts: depth is 1 to %d, tokens at least as many, context 1 or more\n", MAX_DEPTH);
        return 2;
    }
    open_world(&w, argv[1], argv[2]);
    prepare(&w);
    printf("policy,context,hot,depth,n,agree,share,mean_p,run,draft_s,pass_s,logprob\n");
    static const char *const names[] = {"harvested", "recent", "first and recent", "random"};
    for (int policy = 0; policy < N_POLICIES && (size_t)policy < w.s.policies; policy++) {
        tally t = {0};
        measure(&w, (sl_hot_policy)policy, &t);
        print(&w, names[policy], &t);
    }
    if (w.s.repeats > 0) {
        measure_cost(&w, 1);
        measure_cost(&w, w.s.depth);
    }
    sl_kv_destroy(w.kv);
    sl_engine_close(w.engine);
    free(w.layers);
    free(w.logits);
    free(w.ids);
    return 0;
}
