/* A context file that grows by a question and its answer: in one commit, when the answer is there. Until then, and
 * however the process ends, the file holds what it held; a killed one is finished by the next append or prefill. */
#include <stdlib.h>
#include <string.h>

#include "run.h"

/* Tokens that a question and its answer take at most: one a byte, and the chat template's. */
static uint64_t most_tokens(const run_state *r)
{
    enum { TEMPLATE_BYTES = 2048 };
    return strlen(r->o.question) + TEMPLATE_BYTES + (uint64_t)r->o.n_predict;
}

sl_status run_open_store(run_state *r, sl_err *err)
{
    const sl_store_options options = {
        .path = r->o.store,
        .for_writing = r->o.append,
        .buffered = r->o.append && r->o.machine.io == SL_IO_BUFFERED,
        .more_tokens = r->o.append ? most_tokens(r) : 0,
    };
    sl_status status = cli_open_store_with(r->engine, &options, r->o.chat, &r->store, err);
    if (status != SL_OK)
        return status;
    sl_store_info info;
    sl_store_get_info(r->store, &info);
    r->was_finished = info.is_finished;
    if (!r->o.append || info.n_tokens == info.intended_tokens)
        return SL_OK;
    return sl_text_error(err, SL_REFUSED,
                         "%s: its prefill is unfinished, %llu of %llu tokens: end it with the same 'sluice prefill', "
                         "or append to a copy of what is there ('sluice fork')",
                         r->o.store, (unsigned long long)info.n_tokens, (unsigned long long)info.intended_tokens);
}

sl_status run_make_context(run_state *r, sl_context_options *options, sl_err *err)
{
    cli_use_store(&r->o.machine, r->store, options);
    if (!r->o.append)
        return cli_make_context(&r->c, r->engine, options, &r->context, err);
    /* Nothing is written but the file. */
    char *folder = cli_folder_of(r->o.store);
    if (!folder)
        return sl_text_error(err, SL_FAILED, "out of memory: %s", r->o.store);
    options->keep = true;
    options->kv_dir = folder;
    sl_status status = cli_make_context(&r->c, r->engine, options, &r->context, err);
    free(folder);
    return status;
}

sl_status run_keep(run_state *r, sl_err *err)
{
    r->is_keeping = true;
    sl_status status = sl_context_keep(r->context, NULL, 0, NULL, NULL, err);
    r->is_kept = status == SL_OK;
    return status;
}

/* With all that it holds and nothing more. */
static sl_status finish(run_state *r, sl_err *err)
{
    sl_store_info info;
    sl_store_get_info(r->store, &info);
    if (info.is_finished)
        return SL_OK;
    sl_context_options options = cli_context_options(&r->o.machine, 0);
    options.stop = NULL; /* this is the way back */
    sl_status status = run_make_context(r, &options, err);
    return status == SL_OK ? sl_context_keep(r->context, NULL, 0, NULL, NULL, err) : status;
}

void run_put_back(run_state *r)
{
    if (!r->store || !r->was_finished)
        return;
    sl_context_destroy(r->context);
    sl_store_close(r->store);
    r->context = NULL;
    r->store = NULL;
    const sl_store_options options = {
        .path = r->o.store, .for_writing = true, .buffered = r->o.machine.io == SL_IO_BUFFERED};
    sl_err why = {SL_OK, ""};
    sl_status status = sl_store_open(r->engine, &options, &r->store, &why);
    if (status == SL_OK)
        status = finish(r, &why);
    if (status == SL_OK)
        fprintf(stderr, "sluice: nothing was appended: %s is as it was\n", r->o.store);
    else
        fprintf(stderr,
                "sluice: warning: nothing was appended: %s holds what it held, but is unfinished until the next "
                "--append or prefill: %s\n",
                r->o.store, why.text);
}
