/* sluice run, inside: shared by cmd_run.c (options and work), run_append.c (a context file that is asked, or grows by
 * the answer) and run_report.c (what was measured). */
#ifndef SL_RUN_H
#define SL_RUN_H

#include "answer.h"
#include "cli.h"
#include "draft_options.h"
#include "draw_options.h"

typedef struct run_options {
    cli_machine machine;
    const char *question, *store, *system;
    cli_draw draw;
    cli_draft draft;
    int64_t n_predict, logprobs;
    bool chat, append, has_logprobs, has_predict; /* has_: was given */
} run_options;

typedef struct run_state {
    cli c;
    run_options o;
    sl_engine *engine;
    sl_context *context;
    sl_store *store;
    char *document;
    size_t document_bytes;
    sl_tokens prompt;
    FILE *text_out; /* stdout; stderr with --json */
    sl_draw_options draw; /* what the sampling options say */
    cli_answer answer;
    double start_s, first_token_s; /* of the clock; from then to the first token, 0: there was none */
    bool was_finished;             /* the context file, before anything was appended */
    bool is_unshown;               /* a piece of the answer could not be written out: none of it is kept */
    bool is_keeping, is_kept;      /* what was read and answered is being put into it; is in it */
} run_state;

/* run_append.c. Opens the context file: as it is, or for one writer. */
sl_status run_open_store(run_state *r, sl_err *err);
/* A context that goes on from it; the options' other fields are the caller's. */
sl_status run_make_context(run_state *r, sl_context_options *options, sl_err *err);
/* Question and answer become part of the file. */
sl_status run_keep(run_state *r, sl_err *err);
/* After an append that came to nothing: a file that was finished is finished again, as it was. Destroys the context. */
void run_put_back(run_state *r);

/* run_report.c. One JSON object on stdout; a table on stderr. */
sl_status run_print_json(run_state *r, const sl_draw_result *result, sl_err *err);
void run_print_table(run_state *r, const sl_draw_result *result);

#endif
