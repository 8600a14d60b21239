/* Tokens a pass of trees against chains, at equal rows, on real text.
 *
 *   bench_trees MODEL TEXT [context=3072] [hot=512] [tokens=96] [temp=0] [drafts=0] [drafter=0]
 *
 * The context is the text's first tokens; `tokens` more are drawn behind it, again and again from the same place: by
 * chains and by trees of 4, 8, 16 and 32 drafts (drafts=N: only N), by the n-gram drafter alone (drafter=1), the self
 * drafter over `hot` tokens alone (2), both (3), or each in turn (0). Then once as chosen by the plan. Everybody draws
 * the same tokens.
 *
 * CSV on stdout: drafter,drafts,shape,tokens,passes,rows,tokens_a_pass,tree_passes,draft_s,pass_s,accept_s */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "api/engine.h"
#include "decode/session.h"

enum { MOST_DRAFTS = 63 };

typedef struct settings {
    size_t context, hot, tokens, drafts, drafter;
    float temp;
} settings;

typedef struct world {
    settings s;
    sl_engine *engine;
    sl_kv_layer *layers;
    sl_session *session;
    sl_ids ids;
    int32_t *drawn, *expected; /* [tokens] */
    size_t n_drawn, n_expected;
} world;

static sl_err error;

static void must(sl_status status)
{
    if (status == SL_OK)
        return;
    fprintf(stderr, "bench_trees: %s\n", error.text);
    exit(1);
}

static void read_settings(settings *s, int n, char **words)
{
    for (int i = 0; i < n; i++) {
        const char *value = strchr(words[i], '=');
        const size_t number = value ? strtoull(value + 1, NULL, 10) : 0;
        if (value && strncmp(words[i], "context=", 8) == 0)
            s->context = number;
        else if (value && strncmp(words[i], "hot=", 4) == 0)
            s->hot = number;
        else if (value && strncmp(words[i], "tokens=", 7) == 0)
            s->tokens = number;
        else if (value && strncmp(words[i], "drafts=", 7) == 0)
            s->drafts = number;
        else if (value && strncmp(words[i], "drafter=", 8) == 0)
            s->drafter = number;
        else if (value && strncmp(words[i], "temp=", 5) == 0)
            s->temp = strtof(value + 1, NULL);
        else {
            fprintf(stderr, "bench_trees: unknown setting %s\n", words[i]);
            exit(2);
        }
    }
}

static void open_world(world *w, const char *model, const char *path)
{
    const sl_engine_options options = {.model_path = model};
    must(sl_engine_open(&options, &w->engine, &error));
    FILE *file = fopen(path, "rb");
    char *text = malloc((size_t)1 << 24);
    if (!file || !text) {
        perror(path);
        exit(1);
    }
    const size_t size = fread(text, 1, (size_t)1 << 24, file);
    fclose(file);
    must(sl_tok_encode(w->engine->tok, text, size, true, &w->ids, NULL, &error));
    free(text);
    w->drawn = calloc(w->s.tokens, sizeof *w->drawn);
    w->expected = calloc(w->s.tokens, sizeof *w->expected);
    w->layers = calloc(w->engine->hp.n_layers, sizeof *w->layers);
    if (w->ids.n < w->s.context || !w->drawn || !w->expected || !w->layers) {
        fprintf(stderr, "bench_trees: %s has %zu tokens, expected %zu\n", path, w->ids.n, w->s.context);
        exit(1);
    }
    for (uint32_t i = 0; i < w->engine->hp.n_layers; i++)
        w->layers[i] = sl_hparams_kv_layer(&w->engine->hp, i);
    sl_session_options session = {
        .weights = w->engine->weights,
        .kernels = &w->engine->kernels,
        .pool = w->engine->pool,
        .budget = &w->engine->budget,
        .kv = {.geom = {SL_KV_TYPE_Q8_0, w->engine->hp.n_layers, w->layers},
               .dir = "/var/tmp",
               .max_tokens = w->s.context + w->s.tokens + 1,
               .resident_bytes = UINT64_MAX / 4,
               .n_slots = 2,
               .budget = &w->engine->budget},
        .max_tokens = w->s.context + w->s.tokens + 1,
        .window_rows = 1024,
        .max_drafts = MOST_DRAFTS,
        .trees = true,
        .will_decode = true,
        .talks = true,
        .ngram = w->s.drafter != 2,
        .hot_tokens = w->s.drafter != 1 ? w->s.hot : 0,
    };
    session.kv.slot_bytes = sl_geom_max_part_bytes(&session.kv.geom);
    must(sl_session_create(&session, &w->session, &error));
}

static bool note_token(void *arg, int32_t id)
{
    world *w = arg;
    w->drawn[w->n_drawn++] = id;
    return true;
}

/* drafter: the index in the session's list, or -1: all. auto_: drafts at most. */
static void draw(world *w, const char *name, const sl_drafter *drafter, size_t drafts, bool trees, bool chosen)
{
    sl_generate_result r;
    const sl_generate_options options = {
        .sampling = {.temp = w->s.temp, .top_p = 1.0f, .seed = 1},
        .n_predict = w->s.tokens,
        .n_context = w->s.context + w->s.tokens,
        .max_drafts = drafts,
        .draft_auto = chosen,
        .may_branch = trees,
        .drafter = drafter,
        .token = note_token,
        .arg = w,
    };
    must(sl_session_rewind(w->session, w->s.context - 1, &error));
    must(sl_session_feed(w->session, w->ids.ids + w->s.context - 1, 1, NULL, &error));
    w->n_drawn = 0;
    must(sl_session_generate(w->session, &options, &r, &error));
    if (w->n_expected > 0 && memcmp(w->drawn, w->expected, w->n_expected * sizeof *w->drawn) != 0) {
        fprintf(stderr, "bench_trees: the text differs\n");
        exit(1);
    }
    w->n_expected = w->n_drawn;
    memcpy(w->expected, w->drawn, w->n_drawn * sizeof *w->drawn);
    printf("%s,%zu,%s,%zu,%zu,%zu,%.2f,%zu,%.3f,%.3f,%.3f\n", name, drafts,
           chosen  ? "chosen"
           : trees ? "tree"
                   : "chain",
           r.n_tokens, r.n_passes, r.n_rows, (double)(r.n_tokens - 1) / (double)r.n_passes, r.draft.n_tree_passes,
           r.draft.draft_s, r.draft.pass_s, r.draft.accept_s);
    fflush(stdout);
}

static void draw_by(world *w, const char *name, const sl_drafter *drafter)
{
    static const size_t numbers[] = {4, 8, 16, 32};
    for (size_t i = 0; i < sizeof numbers / sizeof numbers[0]; i++)
        for (int trees = 0; trees < 2; trees++)
            if (w->s.drafts == 0 || w->s.drafts == numbers[i])
                draw(w, name, drafter, numbers[i], trees == 1, false);
}

int main(int argc, char **argv)
{
    static world w = {.s = {.context = 3072, .hot = 512, .tokens = 96}};
    if (argc < 3) {
        fprintf(stderr, "usage: bench_trees MODEL TEXT [setting=value ...]\n");
        return 2;
    }
    read_settings(&w.s, argc - 3, argv + 3);
    open_world(&w, argv[1], argv[2]);
    must(sl_session_feed(w.session, w.ids.ids, w.s.context, NULL, &error));
    printf("drafter,drafts,shape,tokens,passes,rows,tokens_a_pass,tree_passes,draft_s,pass_s,accept_s\n");
    draw(&w, "none", NULL, 0, false, false);
    size_t n = 0;
    const sl_drafter *drafters = sl_session_drafters(w.session, &n);
    for (size_t i = 0; i < n && w.s.drafter != 3; i++)
        draw_by(&w, drafters[i].name, &drafters[i]);
    if (n > 1)
        draw_by(&w, "all", NULL);
    draw(&w, "all", NULL, MOST_DRAFTS, true, true);
    draw(&w, "all", NULL, MOST_DRAFTS, false, true);
    sl_session_destroy(w.session);
    sl_ids_deinit(&w.ids, &w.engine->budget);
    sl_engine_close(w.engine);
    free(w.layers);
    free(w.drawn);
    free(w.expected);
    return 0;
}
