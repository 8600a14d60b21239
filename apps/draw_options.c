#include "draw_options.h"

#include <math.h>
#include <string.h>

size_t cli_draw_options(cli_draw *d, sl_arg *out)
{
    *d = (cli_draw){.seed = 1, .top_p = 1.0, .repeat_penalty = 1.0, .repeat_last_n = 64};
    const sl_arg options[CLI_DRAW_OPTIONS] = {
        {.name = "temp", .kind = SL_ARG_KIND_FLOAT, .out = &d->temp, .low = 0, .high = 1000, .group = "Sampling",
         .help = "temperature; 0 takes the likeliest token", .default_text = "0"},
        {.name = "top-k", .kind = SL_ARG_KIND_INT, .out = &d->top_k, .min = 0, .max = 1 << 24,
         .help = "keep the k likeliest tokens; 0 keeps all", .default_text = "0"},
        {.name = "top-p", .kind = SL_ARG_KIND_FLOAT, .out = &d->top_p, .low = 1e-6, .high = 1,
         .help = "keep the likeliest tokens up to this share", .default_text = "1"},
        {.name = "min-p", .kind = SL_ARG_KIND_FLOAT, .out = &d->min_p, .low = 0, .high = 1,
         .help = "keep tokens at least this likely, the likeliest being 1", .default_text = "0"},
        {.name = "seed", .kind = SL_ARG_KIND_INT, .out = &d->seed, .min = 0, .max = INT64_MAX,
         .help = "of the random numbers", .default_text = "1"},
        {.name = "repeat-penalty", .kind = SL_ARG_KIND_FLOAT, .out = &d->repeat_penalty, .low = 0.01, .high = 100,
         .help = "divide the logits of tokens that were there by this, multiply those below 0", .default_text = "1"},
        {.name = "presence-penalty", .kind = SL_ARG_KIND_FLOAT, .out = &d->presence_penalty, .low = -1000,
         .high = 1000, .help = "take this off the logits of tokens that were there", .default_text = "0"},
        {.name = "frequency-penalty", .kind = SL_ARG_KIND_FLOAT, .out = &d->frequency_penalty, .low = -1000,
         .high = 1000, .help = "and this for each time that they were", .default_text = "0"},
        {.name = "repeat-last-n", .kind = SL_ARG_KIND_INT, .out = &d->repeat_last_n, .min = -1, .max = INT64_MAX,
         .help = "penalties look at so many tokens back, prompt included; -1: at all, 0: off", .default_text = "64"},
        {.name = "logit-bias", .kind = SL_ARG_KIND_LIST, .out = &d->biases, .metavar = "TOKEN=X",
         .help = "add X to a token's logit, -inf bans it; TOKEN: an id, or text that is one token; may be repeated"},
        {.name = "stop", .kind = SL_ARG_KIND_LIST, .out = &d->stops,
         .help = "end before this text; may be repeated"},
    };
    return cli_put_options(out, options, CLI_DRAW_OPTIONS);
}

/* The last = divides: a text may hold others. */
static sl_status read_bias(const char *item, int32_t *id, float *value, sl_err *err)
{
    const char *equals = strrchr(item, '=');
    double number = -INFINITY;
    if (!equals || equals == item || (strcmp(equals + 1, "-inf") != 0 && !sl_args_float(equals + 1, &number)) ||
        !(number == -INFINITY || fabs(number) <= 1e6))
        return sl_text_error(err, SL_USAGE,
                             "--logit-bias %.100s: expected ID=X or TEXT=X, X a number from -1e6 to 1e6 or -inf", item);
    *value = (float)number;
    *id = -1;
    const size_t size = (size_t)(equals - item);
    if (strspn(item, "0123456789") != size)
        return SL_OK;
    char digits[16];
    int64_t read = -1;
    snprintf(digits, sizeof digits, "%.*s", (int)size, item);
    if (size >= sizeof digits || !sl_args_int(digits, &read) || read > INT32_MAX)
        return sl_text_error(err, SL_USAGE, "--logit-bias %.100s: no vocabulary has that id", item);
    *id = (int32_t)read;
    return SL_OK;
}

sl_status cli_draw_check(cli_draw *d, sl_err *err)
{
    sl_status status = SL_OK;
    for (size_t i = 0; status == SL_OK && i < d->biases.n_items; i++)
        status = read_bias(d->biases.items[i], &d->bias_ids[i], &d->bias_values[i], err);
    return status;
}

static sl_status find_token(sl_engine *engine, const char *item, int32_t *id, sl_err *err)
{
    sl_tokens tokens = {0};
    const size_t size = (size_t)(strrchr(item, '=') - item);
    sl_status status = sl_engine_tokenize(engine, item, size, true, &tokens, NULL, err);
    if (status == SL_OK && tokens.n != 1)
        status = sl_text_error(err, SL_USAGE,
                               "--logit-bias %.100s: the text is %zu tokens of this model, expected one ('sluice "
                               "tokenize' shows them)",
                               item, tokens.n);
    if (status == SL_OK)
        *id = tokens.ids[0];
    sl_tokens_free(engine, &tokens);
    return status;
}

sl_status cli_draw_start(cli_draw *d, sl_engine *engine, sl_draw_options *out, sl_err *err)
{
    sl_status status = SL_OK;
    for (size_t i = 0; status == SL_OK && i < d->biases.n_items; i++)
        if (d->bias_ids[i] < 0)
            status = find_token(engine, d->biases.items[i], &d->bias_ids[i], err);
    if (status != SL_OK)
        return status;
    out->temp = (float)d->temp;
    out->top_k = (uint32_t)d->top_k;
    out->top_p = (float)d->top_p;
    out->min_p = (float)d->min_p;
    out->seed = (uint64_t)d->seed;
    out->penalty_last_n = d->repeat_last_n;
    out->repeat_penalty = (float)d->repeat_penalty;
    out->presence_penalty = (float)d->presence_penalty;
    out->frequency_penalty = (float)d->frequency_penalty;
    out->bias_ids = d->bias_ids;
    out->bias_values = d->bias_values;
    out->n_bias = d->biases.n_items;
    out->stops = d->stops.items;
    out->n_stops = d->stops.n_items;
    return sl_engine_check_draw(engine, out, err);
}
