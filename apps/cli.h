/* What the subcommands share: opening an engine with a progress line, Ctrl-C, the clock. */
#ifndef SL_CLI_H
#define SL_CLI_H

#include <sluice/sluice.h>

#include "common/args.h"
#include "common/json.h"
#include "common/progress.h"
#include "common/text.h"

typedef struct cli {
    sl_progress progress;
    const char *phase; /* "loading", "prefill", "scoring" */
    bool verbose;
} cli;

/* Options that several subcommands have; fill before the table. */
typedef struct cli_engine_options {
    const char *model;
    int64_t ram_bytes, threads;
} cli_engine_options;

void cli_init(cli *c, bool json);
double cli_seconds(void);
bool cli_interrupted(void *arg); /* arg unused: fits the library's `stop` */
void cli_count(void *arg, size_t done_tokens, size_t total_tokens); /* arg: cli; draws cli.phase in tokens */

/* sl_text_read with a limit from the budget: a document that fills it is refused before it is read. */
sl_status cli_read_document(const char *path, const cli_engine_options *options, char **out, size_t *out_bytes,
                            sl_err *err);

/* Opens the engine; with c->verbose prints processor, kernels and budget to stderr. */
sl_status cli_open(cli *c, const cli_engine_options *options, bool vocab_only, sl_engine **out, sl_err *err);
void cli_print_plan(const sl_context *context);

int cmd_run(int argc, char **argv, sl_err *err);
int cmd_score(int argc, char **argv, sl_err *err);
int cmd_tokenize(int argc, char **argv, sl_err *err);
int cmd_inspect(int argc, char **argv, sl_err *err);

/* Parses; on --help prints it. Returns true when the command should go on, else *exit_code is set. */
bool cli_parse(const sl_args_table *table, int argc, char **argv, sl_args_result *result, int *exit_code, sl_err *err);

#endif
