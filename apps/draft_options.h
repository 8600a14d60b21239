/* How tokens are drafted: the options of the command line, the same for run and chat. Owns: the draft model's path.
 * Thread rule: one thread. */
#ifndef SL_DRAFT_OPTIONS_H
#define SL_DRAFT_OPTIONS_H

#include "cli.h"

enum { CLI_MOST_AUTO_DRAFTS = 63 }; /* with --draft auto: a burst of 64 rows */

typedef struct cli_draft {
    const char *drafter_text, *draft_text; /* as given; NULL: not */
    int64_t hot;
    bool tree, no_tree;
    /* what they say, after cli_draft_read: */
    unsigned drafters; /* SL_DRAFT_WITH_*; 0: auto */
    char *model;       /* path of the draft model; NULL: none */
    size_t max_drafts;
    bool is_auto;
} cli_draft;

enum { CLI_DRAFT_OPTIONS = 5 };
/* Their group, and their defaults in *d; returns how many. */
size_t cli_draft_options(cli_draft *d, sl_arg *out);
/* After parsing; cli_draft_free whatever it returns. *engine gets the draft model. */
sl_status cli_draft_read(cli_draft *d, cli_engine_options *engine, sl_err *err);
void cli_draft_free(cli_draft *d);
/* Of *context and *draw what these options say. */
void cli_draft_context(const cli_draft *d, sl_context_options *context);
void cli_draft_draw(const cli_draft *d, sl_draw_options *draw);

#endif
