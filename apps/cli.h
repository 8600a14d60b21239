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

typedef struct cli_engine_options {
    const char *model;
    int64_t ram_bytes, threads;
} cli_engine_options;

/* What every subcommand that computes takes: model, machine, long contexts, output. */
typedef struct cli_machine {
    cli_engine_options engine;
    const char *file, *kv_dir;
    int64_t window, ring;
    double rope_scale;
    bool force_context, allow_ram_dir, json, verbose;
    int kv; /* 0: q8_0, 1: f16 */
} cli_machine;

enum { CLI_MACHINE_OPTIONS = 13 };

/* The option table of a subcommand: its own options behind the input ones, the machine's after. Returns how many. */
size_t cli_machine_table(cli_machine *m, const sl_arg *own, size_t n_own, sl_arg *out);
sl_context_options cli_context_options(const cli_machine *m, size_t prompt_tokens);

void cli_init(cli *c);
double cli_seconds(void);
bool cli_interrupted(void *arg); /* arg unused: fits the library's `stop` */
void cli_count(void *arg, size_t done_tokens, size_t total_tokens); /* arg: cli; draws cli.phase in tokens */

/* sl_text_read; SL_CANCELLED after Ctrl-C. */
sl_status cli_read_text(const char *path, uint64_t limit, char **out, size_t *out_bytes, sl_err *err);

/* The same with a limit from the budget: a document that fills it is refused before it is read. */
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
