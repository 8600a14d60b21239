/* sluice run: prefill a text into a cache on flash, answer a question about it by bursts, print what was measured. */
#include <stdlib.h>
#include <string.h>

#include "run.h"

enum {
    TEXT_OPTIONS = 3,
    OWN_OPTIONS = 3,
    ALL_OWN_OPTIONS = TEXT_OPTIONS + CLI_TEMPLATE_OPTIONS + OWN_OPTIONS + CLI_DRAW_OPTIONS + CLI_DRAFT_OPTIONS
};

static size_t fill_options(run_options *o, sl_arg *out)
{
    sl_arg all[ALL_OWN_OPTIONS];
    const sl_arg text[TEXT_OPTIONS] = {
        {.name = "context", .letter = 'c', .kind = SL_ARG_KIND_STRING, .out = &o->store, .metavar = "BOOK.kv",
         .help = "a context file in place of the document (sluice prefill); stays as it is without --append"},
        {.name = "prompt", .letter = 'p', .kind = SL_ARG_KIND_STRING, .out = &o->question, .allow_empty = true,
         .metavar = "TEXT", .help = "the question; stands after the document and a blank line"},
        {.name = "chat", .kind = SL_ARG_KIND_FLAG, .out = &o->chat,
         .help = "one user message in the model's chat template"},
    };
    const sl_arg own[OWN_OPTIONS] = {
        {.name = "append", .kind = SL_ARG_KIND_FLAG, .out = &o->append,
         .help = "question and answer become part of the context file; Ctrl-C keeps what was answered"},
        {.name = "predict", .letter = 'n', .kind = SL_ARG_KIND_INT, .out = &o->n_predict, .given = &o->has_predict,
         .min = 0, .max = 1 << 24, .group = "Answer", .help = "most tokens to generate", .default_text = "128"},
        {.name = "logprobs", .kind = SL_ARG_KIND_INT, .out = &o->logprobs, .given = &o->has_logprobs, .min = 0,
         .max = SL_LOGPROBS_MAX, .help = "log-probability of each token and of the N best, by the raw logits"},
    };
    size_t n = cli_put_options(all, text, TEXT_OPTIONS);
    n += cli_template_options(&o->machine, &o->system, all + n);
    n += cli_put_options(all + n, own, OWN_OPTIONS);
    n += cli_draw_options(&o->draw, all + n);
    n += cli_draft_options(&o->draft, all + n);
    return cli_machine_table(&o->machine, all, n, out);
}

static bool parse(run_options *o, int argc, char **argv, int *exit_code, sl_err *err)
{
    *o = (run_options){.n_predict = 128};
    sl_arg options[ALL_OWN_OPTIONS + CLI_MACHINE_OPTIONS];
    const sl_args_table table = {
        .usage = "sluice run -m MODEL.gguf [-f DOC.txt | -c BOOK.kv] -p \"question\" [options]",
        .about = "Reads a document into a KV cache on flash, or takes it from a context file that holds it, and "
                 "answers a question about it. The answer goes to stdout as it comes, what was measured to stderr.",
        .options = options,
        .n_options = fill_options(o, options),
    };
    sl_args_result result;
    if (!cli_parse(&table, argc, argv, &result, exit_code, err))
        return false;
    const char *text = NULL;
    if (o->store && o->machine.file)
        text = "a document (-f) or a context (-c), not both";
    else if (o->store && (!o->question || !*o->question))
        text = "a context (-c) needs a question (-p)";
    else if (o->machine.file && cli_is_context(o->machine.file))
        text = "the document (-f) is a context file: give it with -c";
    else if (o->append && !o->store)
        text = "--append needs a context file to append to (-c)";
    else if (!o->machine.file && !o->question && !o->store)
        text = "nothing to read: give a document (-f), a context (-c) or a question (-p)";
    sl_status status = text ? sl_text_error(err, SL_USAGE, "%s", text)
                            : cli_template_check(&o->machine, o->system, o->chat, err);
    if (status == SL_OK)
        status = cli_draw_check(&o->draw, err);
    if (status == SL_OK)
        status = cli_draft_read(&o->draft, &o->machine.engine, err);
    *exit_code = (int)status;
    return *exit_code == (int)SL_OK;
}

/* ----------------------------------------------------------------------------------------------------- the work */

static bool on_token(void *arg, int32_t id, const char *text, size_t size)
{
    run_state *r = arg;
    if (r->answer.n_ids == 0)
        r->first_token_s = cli_seconds() - r->start_s;
    r->is_unshown = fwrite(text, 1, size, r->text_out) != size || fflush(r->text_out) != 0;
    return cli_answer_add(&r->answer, id, text, size) && !r->is_unshown && !cli_interrupted(NULL);
}

static void on_logprobs(void *arg, const sl_token_logprobs *token)
{
    run_state *r = arg;
    cli_answer_add_logprobs(&r->answer, token);
}

static sl_status read_prompt(run_state *r, sl_err *err)
{
    sl_store_info stored = {0};
    if (r->store)
        sl_store_get_info(r->store, &stored);
    const sl_prompt prompt = {
        .document = r->document,
        .document_size = r->document_bytes,
        .question = r->o.question,
        .question_size = r->o.question ? strlen(r->o.question) : 0,
        .chat = r->o.chat,
        .system = r->o.system,
        .system_size = r->o.system ? strlen(r->o.system) : 0,
        .stored = r->store != NULL,
        .stored_ids = stored.ids,
        .n_stored = (size_t)stored.n_tokens,
    };
    sl_status status = sl_engine_prompt(r->engine, &prompt, &r->prompt, err);
    free(r->document);
    r->document = NULL;
    return status;
}

/* A first Ctrl-C ends the answer; what it left is put into the file all the same. */
static bool is_stopped(void *arg)
{
    const run_state *r = arg;
    return !r->is_keeping && cli_interrupted(NULL);
}

/* Of an answer that LongRoPE's short set cannot serve in full: one that was asked for is refused before the work. */
static sl_status expect_set(const run_state *r, const sl_context_options *o, sl_err *err)
{
    sl_store_info stored = {0};
    sl_plan plan;
    if (r->store)
        sl_store_get_info(r->store, &stored);
    sl_context_get_plan(r->context, &plan);
    const sl_rope_set set = o->rope.set == SL_ROPE_SET_AUTO ? stored.rope.set : o->rope.set;
    const size_t fed = (size_t)stored.n_tokens + o->prompt_tokens;
    if (set != SL_ROPE_SET_SHORT || fed + o->predict_tokens <= plan.max_tokens)
        return SL_OK;
    const char *hint = r->store ? "prefill again with --rope-set long" : "--rope-set long serves more";
    if (r->o.has_predict)
        return sl_text_error(err, SL_REFUSED, "%zu tokens and an answer of %zu (-n) are more than the %zu that the "
                             "short set of RoPE factors serves: %s", fed, o->predict_tokens, plan.max_tokens, hint);
    fprintf(stderr, "sluice: note: the answer has at most %zu tokens: the short set of RoPE factors serves %zu; %s\n",
            plan.max_tokens - fed, plan.max_tokens, hint);
    return SL_OK;
}

static sl_status make_context(run_state *r, sl_err *err)
{
    sl_context_options options = cli_context_options(&r->o.machine, r->prompt.n);
    options.stop = is_stopped;
    options.arg = r;
    options.predict_tokens = (size_t)r->o.n_predict;
    cli_draft_context(&r->o.draft, &options);
    sl_status status = r->store ? run_make_context(r, &options, err)
                                : cli_make_context(&r->c, r->engine, &options, &r->context, err);
    return status == SL_OK ? expect_set(r, &options, err) : status;
}

static sl_status answer(run_state *r, sl_draw_result *result, sl_err *err)
{
    sl_draw_options options = r->draw;
    options.predict_tokens = (size_t)r->o.n_predict;
    cli_draft_draw(&r->o.draft, &options);
    options.token = on_token;
    options.arg = r;
    options.n_logprobs = (size_t)r->o.logprobs;
    options.logprobs = r->o.has_logprobs ? on_logprobs : NULL;
    r->answer.has_logprobs = r->o.has_logprobs;
    sl_status status = sl_context_generate(r->context, &options, result, err);
    if (status == SL_OK && r->answer.out_of_memory)
        status = sl_text_error(err, SL_FAILED, "out of memory: answer");
    if (status == SL_OK && r->is_unshown)
        status = sl_text_error(err, SL_FAILED, "cannot write to standard %s", r->o.machine.json ? "error" : "output");
    return status;
}

/* Another model's context is refused as that, before its text is looked for in this model's template. */
static sl_status match_store(const run_state *r, sl_err *err)
{
    sl_context_options options = cli_context_options(&r->o.machine, 0);
    cli_use_store(&r->o.machine, r->store, &options);
    return sl_store_match(r->store, &options, err);
}

static sl_status start(run_state *r, sl_err *err)
{
    sl_status status = SL_OK;
    const cli_machine *m = &r->o.machine;
    if (r->o.store)
        status = cli_expect_other_file("--trace", m->engine.trace, r->o.store, err);
    if (status == SL_OK && m->file)
        status = cli_read_document(m->file, &m->engine, &r->document, &r->document_bytes, err);
    if (status == SL_OK)
        status = cli_open(&r->c, &m->engine, &r->engine, err);
    if (status == SL_OK)
        status = cli_draw_start(&r->o.draw, r->engine, &r->draw, err);
    if (status == SL_OK && r->o.store)
        status = run_open_store(r, err);
    if (status == SL_OK && r->o.store)
        status = match_store(r, err);
    if (status == SL_OK)
        status = read_prompt(r, err);
    return status == SL_OK ? make_context(r, err) : status;
}

static sl_status work(run_state *r, sl_err *err)
{
    const cli_machine *m = &r->o.machine;
    sl_draw_result result = {SL_FINISH_REASON_CANCELLED, 0};
    sl_status status = start(r, err);
    if (status == SL_OK) {
        r->c.phase = "prefill";
        status = sl_context_feed(r->context, r->prompt.ids, r->prompt.n, cli_count, &r->c, err);
        sl_progress_clear(&r->c.progress);
    }
    if (status == SL_OK)
        status = answer(r, &result, err);
    if (status == SL_OK && r->o.append)
        status = run_keep(r, err);
    if (status == SL_CANCELLED) /* before the answer: the object says so, with no text */
        return m->json && run_print_json(r, &result, NULL) != SL_OK ? SL_FAILED : status;
    if (status != SL_OK)
        return status;
    if (r->answer.n_text > 0 && r->answer.text[r->answer.n_text - 1] != '\n')
        fputc('\n', r->text_out);
    if (r->o.has_logprobs && !m->json)
        cli_answer_print_logprobs(&r->answer, r->engine);
    if (m->json)
        status = run_print_json(r, &result, err);
    else
        run_print_table(r, &result);
    if (status == SL_OK && result.reason == SL_FINISH_REASON_CANCELLED)
        return sl_text_error(err, SL_CANCELLED, "interrupted");
    return status;
}

int cmd_run(int argc, char **argv, sl_err *err)
{
    run_state r;
    memset(&r, 0, sizeof r);
    int code = SL_OK;
    if (!parse(&r.o, argc, argv, &code, err)) {
        cli_draft_free(&r.o.draft);
        return code;
    }
    cli_init(&r.c);
    r.c.verbose = r.o.machine.verbose;
    r.text_out = r.o.machine.json ? stderr : stdout;
    r.start_s = cli_seconds();
    code = (int)work(&r, err);
    sl_progress_clear(&r.c.progress);
    if (r.o.append && !r.is_kept)
        run_put_back(&r);
    free(r.document);
    cli_answer_free(&r.answer);
    cli_draft_free(&r.o.draft);
    sl_context_destroy(r.context);
    sl_store_close(r.store);
    if (r.engine)
        sl_tokens_free(r.engine, &r.prompt);
    return cli_close(r.engine, code, err);
}
