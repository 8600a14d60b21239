#include "draft_options.h"

#include <stdlib.h>
#include <string.h>

enum { MOST_DRAFTS = 255 };

size_t cli_draft_options(cli_draft *d, sl_arg *out)
{
    *d = (cli_draft){.hot = 0};
    const sl_arg options[CLI_DRAFT_OPTIONS] = {
        {.name = "drafter", .kind = SL_ARG_KIND_STRING, .out = &d->drafter_text, .metavar = "LIST",
         .group = "Drafting",
         .help = "what proposes tokens, which never changes the text: ngram (what the text went on with before), self "
                 "(the model over a small part of its cache), model:FILE (a smaller model with the same tokens), "
                 "several with commas between them, auto or none",
         .default_text = "auto"},
        {.name = "draft", .kind = SL_ARG_KIND_STRING, .out = &d->draft_text, .metavar = "N|auto",
         .help = "drafted tokens verified per pass, 0 to 255; auto: as many as pay, at most 63",
         .default_text = "auto"},
        {.name = "tree", .kind = SL_ARG_KIND_FLAG, .out = &d->tree, .help = "let drafts branch, with --draft N too"},
        {.name = "no-tree", .kind = SL_ARG_KIND_FLAG, .out = &d->no_tree, .help = "never let them branch"},
        {.name = "hot", .kind = SL_ARG_KIND_TOKENS, .out = &d->hot, .min = 64, .max = 1 << 20,
         .help = "tokens of each layer and KV head that the self drafter looks at, resident",
         .default_text = "4K, less where memory is short"},
    };
    return cli_put_options(out, options, CLI_DRAFT_OPTIONS);
}

/* ---------------------------------------------------------------------------------------------------------- reading */

static sl_status refuse_drafter(const char *list, const char *why, sl_err *err)
{
    return sl_text_error(err, SL_USAGE, "--drafter %.100s: %s", list, why);
}

static bool is_word(const char *item, size_t size, const char *word)
{
    return size == strlen(word) && memcmp(item, word, size) == 0;
}

static sl_status read_model(cli_draft *d, const char *path, size_t size, sl_err *err)
{
    if (size == 0)
        return refuse_drafter(d->drafter_text, "model: needs a file, model:FILE", err);
    if (d->model)
        return refuse_drafter(d->drafter_text, "one draft model at most", err);
    d->model = malloc(size + 1);
    if (!d->model)
        return sl_text_error(err, SL_FAILED, "out of memory: draft model's path");
    memcpy(d->model, path, size);
    d->model[size] = '\0';
    return SL_OK;
}

typedef struct drafter_words {
    bool has_auto, has_none;
} drafter_words;

static sl_status read_word(cli_draft *d, unsigned drafter, sl_err *err)
{
    if (d->drafters & drafter)
        return refuse_drafter(d->drafter_text, "one of them stands there twice", err);
    d->drafters |= drafter;
    return SL_OK;
}

static sl_status read_drafter(cli_draft *d, const char *item, size_t size, drafter_words *words, sl_err *err)
{
    static const char model[] = "model:";
    if (is_word(item, size, "auto")) {
        words->has_auto = true;
    } else if (is_word(item, size, "none")) {
        words->has_none = true;
    } else if (is_word(item, size, "ngram")) {
        return read_word(d, SL_DRAFT_WITH_NGRAM, err);
    } else if (is_word(item, size, "self")) {
        return read_word(d, SL_DRAFT_WITH_SELF, err);
    } else if (size >= sizeof model - 1 && memcmp(item, model, sizeof model - 1) == 0) {
        d->drafters |= SL_DRAFT_WITH_MODEL;
        return read_model(d, item + sizeof model - 1, size - (sizeof model - 1), err);
    } else {
        return refuse_drafter(d->drafter_text,
                              "expected auto, none, or ngram, self and model:FILE with commas between them", err);
    }
    return SL_OK;
}

static sl_status read_drafters(cli_draft *d, sl_err *err)
{
    drafter_words words = {false, false};
    const char *item = d->drafter_text;
    while (item) {
        const char *comma = strchr(item, ',');
        sl_status status = read_drafter(d, item, comma ? (size_t)(comma - item) : strlen(item), &words, err);
        if (status != SL_OK)
            return status;
        item = comma ? comma + 1 : NULL;
    }
    if (words.has_none && (words.has_auto || d->drafters != 0))
        return refuse_drafter(d->drafter_text, "none stands alone", err);
    if (words.has_auto && (d->drafters & ~(unsigned)SL_DRAFT_WITH_MODEL))
        return refuse_drafter(d->drafter_text, "auto takes ngram and self by itself: only model:FILE goes with it",
                              err);
    if (words.has_auto)
        d->drafters = 0;
    if (words.has_none && !d->is_auto && d->max_drafts > 0)
        return sl_text_error(err, SL_USAGE, "--draft %.40s asks for drafts, and --drafter none proposes none",
                             d->draft_text);
    if (words.has_none)
        d->max_drafts = 0;
    return SL_OK;
}

static sl_status read_draft(cli_draft *d, sl_err *err)
{
    int64_t n = 0;
    d->is_auto = !d->draft_text || strcmp(d->draft_text, "auto") == 0;
    d->max_drafts = CLI_MOST_AUTO_DRAFTS;
    if (d->is_auto)
        return SL_OK;
    if (!sl_args_int(d->draft_text, &n) || n < 0 || n > MOST_DRAFTS)
        return sl_text_error(err, SL_USAGE, "--draft %.40s: expected auto, or a number from 0 to %d", d->draft_text,
                             MOST_DRAFTS);
    d->max_drafts = (size_t)n;
    return SL_OK;
}

sl_status cli_draft_read(cli_draft *d, cli_engine_options *engine, sl_err *err)
{
    sl_status status = read_draft(d, err);
    if (status == SL_OK)
        status = read_drafters(d, err);
    if (status != SL_OK)
        return status;
    if (d->tree && d->no_tree)
        return sl_text_error(err, SL_USAGE, "--tree or --no-tree, not both");
    if (d->tree && d->max_drafts == 0)
        return sl_text_error(err, SL_USAGE, "--tree lets drafts branch, and %s leaves none",
                             d->is_auto ? "--drafter none" : "--draft 0");
    if (d->hot > 0 && d->drafters != 0 && !(d->drafters & SL_DRAFT_WITH_SELF))
        return sl_text_error(err, SL_USAGE, "--hot is for the self drafter, which --drafter %.100s leaves out",
                             d->drafter_text);
    if (d->max_drafts > 0)
        engine->draft_model = d->model;
    return SL_OK;
}

void cli_draft_free(cli_draft *d)
{
    free(d->model);
    d->model = NULL;
}

/* ------------------------------------------------------------------------------------------------------------ using */

void cli_draft_context(const cli_draft *d, sl_context_options *context)
{
    context->max_drafts = d->max_drafts;
    context->draft_auto = d->is_auto;
    context->drafters = d->max_drafts > 0 ? d->drafters : 0;
    context->hot_tokens = (size_t)d->hot;
    context->no_trees = d->no_tree || (!d->is_auto && !d->tree);
}

void cli_draft_draw(const cli_draft *d, sl_draw_options *draw)
{
    draw->max_drafts = d->max_drafts;
    draw->draft_auto = d->is_auto;
    draw->draft_shape = d->tree      ? SL_DRAFT_SHAPE_TREE
                        : d->no_tree ? SL_DRAFT_SHAPE_CHAIN
                                     : SL_DRAFT_SHAPE_AUTO;
}
