#include "answer.h"

#include <stdlib.h>
#include <string.h>

/* Room for n more of `bytes` each behind the first `used`. */
static bool grow(void **items, size_t *cap, size_t used, size_t n, size_t bytes)
{
    if (used + n <= *cap)
        return true;
    const size_t wanted = 2 * *cap + n + 256;
    void *grown = realloc(*items, wanted * bytes);
    if (!grown)
        return false;
    *items = grown;
    *cap = wanted;
    return true;
}

bool cli_answer_add(cli_answer *a, int32_t id, const char *text, size_t size)
{
    void *ids = a->ids, *bytes = a->text;
    bool ok = (id < 0 || grow(&ids, &a->ids_cap, a->n_ids, 1, sizeof *a->ids)) &&
              grow(&bytes, &a->text_cap, a->n_text, size, 1);
    a->ids = ids;
    a->text = bytes;
    a->out_of_memory = a->out_of_memory || !ok;
    if (!ok)
        return false;
    if (id >= 0)
        a->ids[a->n_ids++] = id;
    if (size > 0)
        memcpy(a->text + a->n_text, text, size);
    a->n_text += size;
    return true;
}

void cli_answer_add_logprobs(cli_answer *a, const sl_token_logprobs *token)
{
    void *logprobs = a->logprobs, *best = a->best;
    size_t cap = a->logprobs_cap;
    a->has_logprobs = true;
    a->n_best = token->n_best;
    bool ok = grow(&logprobs, &cap, a->n_logprobs, 1, (1 + a->n_best) * sizeof *a->logprobs);
    a->logprobs = logprobs;
    cap = a->logprobs_cap;
    ok = ok && grow(&best, &cap, a->n_logprobs, 1, (a->n_best + 1) * sizeof *a->best);
    a->best = best;
    a->out_of_memory = a->out_of_memory || !ok;
    if (!ok)
        return;
    a->logprobs_cap = cap;
    float *row = a->logprobs + a->n_logprobs * (1 + a->n_best);
    row[0] = token->logprob;
    if (a->n_best > 0) {
        memcpy(row + 1, token->best_logprobs, a->n_best * sizeof *row);
        memcpy(a->best + a->n_logprobs * a->n_best, token->best, a->n_best * sizeof *a->best);
    }
    a->n_logprobs++;
}

void cli_answer_clear(cli_answer *a)
{
    a->n_text = a->n_ids = a->n_logprobs = 0;
    a->out_of_memory = false;
}

void cli_answer_free(cli_answer *a)
{
    free(a->text);
    free(a->ids);
    free(a->logprobs);
    free(a->best);
    memset(a, 0, sizeof *a);
}

const char *cli_finish_reason(sl_finish_reason reason)
{
    static const char *const names[] = {"stop", "length", "context", "cancelled"};
    return names[reason];
}

typedef struct token_text {
    char bytes[256]; /* what is longer is cut */
    size_t n;
} token_text;

static bool take_bytes(void *arg, const char *bytes, size_t size)
{
    token_text *t = arg;
    size_t room = sizeof t->bytes - t->n;
    size = size < room ? size : room;
    memcpy(t->bytes + t->n, bytes, size);
    t->n += size;
    return true;
}

static token_text text_of(const sl_engine *engine, int32_t id)
{
    token_text text = {.n = 0};
    if (sl_engine_detokenize(engine, &id, 1, true, take_bytes, &text, NULL) != SL_OK)
        text.n = 0;
    return text;
}

static void token_json(sl_json *json, const sl_engine *engine, int32_t id, float logprob)
{
    const token_text text = text_of(engine, id);
    sl_json_key(json, "id");
    sl_json_int(json, id);
    sl_json_key(json, "text");
    sl_json_bytes(json, text.bytes, text.n);
    sl_json_key(json, "logprob");
    sl_json_float(json, logprob);
}

static void logprobs_json(sl_json *json, const cli_answer *a, const sl_engine *engine)
{
    sl_json_key(json, "logprobs");
    sl_json_array_start(json);
    for (size_t i = 0; i < a->n_logprobs && i < a->n_ids; i++) {
        const float *row = a->logprobs + i * (1 + a->n_best);
        sl_json_object_start(json);
        token_json(json, engine, a->ids[i], row[0]);
        sl_json_key(json, "top");
        sl_json_array_start(json);
        for (size_t k = 0; k < a->n_best; k++) {
            sl_json_object_start(json);
            token_json(json, engine, a->best[i * a->n_best + k], row[1 + k]);
            sl_json_object_end(json);
        }
        sl_json_array_end(json);
        sl_json_object_end(json);
    }
    sl_json_array_end(json);
}

void cli_answer_json(sl_json *json, const cli_answer *a, const sl_engine *engine, sl_finish_reason reason)
{
    sl_json_key(json, "text");
    sl_json_bytes(json, a->text ? a->text : "", a->n_text);
    sl_json_key(json, "tokens");
    sl_json_array_start(json);
    for (size_t i = 0; i < a->n_ids; i++)
        sl_json_int(json, a->ids[i]);
    sl_json_array_end(json);
    if (a->has_logprobs)
        logprobs_json(json, a, engine);
    sl_json_key(json, "finish_reason");
    sl_json_string(json, cli_finish_reason(reason));
}

static void print_token(const sl_engine *engine, int32_t id, float logprob)
{
    const token_text text = text_of(engine, id);
    const cli_excerpt excerpt = {text.bytes, text.n, 0, text.n};
    char shown[sizeof text.bytes + 1];
    fprintf(stderr, "  %d:%.4f \"%s\"", id, (double)logprob, cli_show_excerpt(&excerpt, shown, sizeof shown));
}

void cli_answer_print_logprobs(const cli_answer *a, const sl_engine *engine)
{
    fprintf(stderr, "\n  log-probabilities by the raw logits: each token, then the %zu best\n", a->n_best);
    for (size_t i = 0; i < a->n_logprobs && i < a->n_ids; i++) {
        const float *row = a->logprobs + i * (1 + a->n_best);
        print_token(engine, a->ids[i], row[0]);
        if (a->n_best > 0)
            fputs("  |", stderr);
        for (size_t k = 0; k < a->n_best; k++)
            print_token(engine, a->best[i * a->n_best + k], row[1 + k]);
        fputc('\n', stderr);
    }
}
