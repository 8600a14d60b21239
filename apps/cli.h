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
    const char *model, *trace;
    const char *draft_model; /* NULL: none */
    const char *chat_template; /* a family's name; NULL: the file's */
    int64_t ram_bytes, threads;
    bool vocab_only, plan_only; /* set by the subcommand */
} cli_engine_options;

/* What every subcommand that computes takes: model, machine, long contexts, output. */
typedef struct cli_machine {
    cli_engine_options engine;
    const char *file, *kv_dir;
    int64_t window, ring, read_rate;
    double rope_scale;
    sl_rope_options rope;
    int rope_scaling, rope_set; /* choices, into rope */
    bool force_context, allow_ram_dir, io_probe, json, verbose;
    int kv; /* -1: not given, which is q8_0 where nothing else decides; 0: q8_0, 1: f16 */
    int io; /* sl_io */
} cli_machine;

/* The groups of options, for tables of a subcommand's own making. Each writes its number of them and returns it; each
 * starts with a group heading of its own. */
enum {
    CLI_MODEL_OPTIONS = 1,
    CLI_COMPUTE_OPTIONS = 5,
    CLI_IO_OPTIONS = 6,
    CLI_LONG_OPTIONS = 10,
    CLI_OUTPUT_OPTIONS = 2,
    CLI_TEMPLATE_OPTIONS = 2
};
size_t cli_model_options(cli_machine *m, sl_arg *out);   /* model */
size_t cli_compute_options(cli_machine *m, sl_arg *out); /* ram, kv, threads, window, ring; m->kv becomes "not given" */
size_t cli_io_options(cli_machine *m, sl_arg *out); /* kv-dir, allow-ram-dir, io, io-probe, read-rate, trace */
size_t cli_long_options(cli_machine *m, sl_arg *out);    /* rope-*, yarn-*, force-context */
size_t cli_output_options(cli_machine *m, sl_arg *out);  /* json, verbose */
/* system, chat-template: without a heading, to stand beside a subcommand's --chat */
size_t cli_template_options(cli_machine *m, const char **system, sl_arg *out);
/* They mean nothing without --chat: SL_USAGE. */
sl_status cli_template_check(const cli_machine *m, const char *system, bool chat, sl_err *err);
size_t cli_put_options(sl_arg *out, const sl_arg *options, size_t n); /* a subcommand's own ones: copies, returns n */

enum {
    CLI_MACHINE_OPTIONS =
        CLI_MODEL_OPTIONS + 1 + CLI_COMPUTE_OPTIONS + CLI_IO_OPTIONS + CLI_LONG_OPTIONS + CLI_OUTPUT_OPTIONS
};

/* The option table of a subcommand that reads a text: its own options behind model and file, the machine's after.
 * Returns how many. */
size_t cli_machine_table(cli_machine *m, const sl_arg *own, size_t n_own, sl_arg *out);
sl_context_options cli_context_options(const cli_machine *m, size_t prompt_tokens);
/* For a context that starts with the file: its cache type, if none was asked for, and its scale. */
void cli_use_store(const cli_machine *m, sl_store *store, sl_context_options *options);

void cli_init(cli *c);
double cli_seconds(void);
bool cli_interrupted(void *arg); /* arg unused: fits the library's `stop` */
void cli_count(void *arg, size_t done_tokens, size_t total_tokens); /* arg: cli; draws cli.phase in tokens */

/* A context file to be asked: says on stderr when it is unfinished or has a damaged copy of something. chat: refused
 * where the file was made without it (and the other way round), since the text would not be what run -f gives. */
sl_status cli_open_store(sl_engine *engine, const char *path, bool chat, sl_store **out, sl_err *err);
/* The same, opened as the options say; and without a word about chat. */
sl_status cli_open_store_with(sl_engine *engine, const sl_store_options *options, bool chat, sl_store **out,
                              sl_err *err);
sl_status cli_open_store_of(sl_engine *engine, const sl_store_options *options, sl_store **out, sl_err *err);

/* On stderr, of an unfinished file: that it is, and what is there. */
void cli_tell_unfinished(const char *prefix, const char *path, const sl_store_info *info);

/* Whether a file begins as a context does; and what is in one. */
bool cli_is_context(const char *path);
/* model: for its text; NULL: without. */
sl_status cli_inspect_context(const char *path, const char *model, bool json, sl_err *err);
typedef struct cli_excerpt {
    const char *bytes;
    size_t n, first, end; /* [first, end) of n bytes are to be shown */
} cli_excerpt;
/* As they can stand in a line, in out [room]: whole characters, no control characters. */
const char *cli_show_excerpt(const cli_excerpt *excerpt, char *out, size_t room);
/* A damaged thing: a line; the members of an object. */
void cli_print_damage(const sl_store_damage *damage);
void cli_json_damage(sl_json *json, const sl_store_damage *damage);

/* sl_text_read; SL_CANCELLED after Ctrl-C. */
sl_status cli_read_text(const char *path, uint64_t limit, char **out, size_t *out_bytes, sl_err *err);

/* The same with a limit from the budget: a document that fills it is refused before it is read. */
sl_status cli_read_document(const char *path, const cli_engine_options *options, char **out, size_t *out_bytes,
                            sl_err *err);

/* The folder that a path's last name lies in; owned by caller; NULL: no memory. */
char *cli_folder_of(const char *path);

/* What is written must not take the place of what is read: SL_USAGE when `output` (NULL: none) and `input` are one
 * file. `option` names the output. */
sl_status cli_expect_other_output(const char *trace, sl_err *err); /* SL_USAGE: the trace would mix with the results */
/* Closes the engine (NULL: nothing) and its trace, whose failure becomes the exit code of what went well. */
int cli_close(sl_engine *engine, int code, sl_err *err);
sl_status cli_expect_other_file(const char *option, const char *output, const char *input, sl_err *err);

/* Opens the engine; with c->verbose prints processor, kernels and budget to stderr. */
sl_status cli_open(cli *c, const cli_engine_options *options, sl_engine **out, sl_err *err);

/* report.c: plans and estimates in words, tables and JSON. */

/* sl_context_create; before it, where the run will be long, the plan's times on stderr (measuring what they rest on
 * takes half a second); with c->verbose, times and plan always. */
sl_status cli_make_context(const cli *c, sl_engine *engine, const sl_context_options *options, sl_context **out,
                           sl_err *err);
/* The estimate beside what came, on stderr; nothing where there is none. */
void cli_print_comparison(const sl_plan *plan, const sl_estimate *estimate, const sl_stats *stats);
/* An object. What is not known is null. */
void cli_json_estimate(sl_json *json, const sl_estimate *estimate);
/* What of the weights stays in memory, and what passes read of the others. */
void cli_json_weights(sl_json *json, const sl_plan *plan);

int cmd_prefill(int argc, char **argv, sl_err *err);
int cmd_chat(int argc, char **argv, sl_err *err);
int cmd_run(int argc, char **argv, sl_err *err);
int cmd_score(int argc, char **argv, sl_err *err);
int cmd_plan(int argc, char **argv, sl_err *err);
int cmd_tokenize(int argc, char **argv, sl_err *err);
int cmd_fork(int argc, char **argv, sl_err *err);
int cmd_inspect(int argc, char **argv, sl_err *err);
int cmd_repair(int argc, char **argv, sl_err *err);
int cmd_verify(int argc, char **argv, sl_err *err);
int cmd_export_text(int argc, char **argv, sl_err *err);
int cmd_rm(int argc, char **argv, sl_err *err);
int cmd_bench(int argc, char **argv, sl_err *err);

/* Parses; on --help prints it. Returns true when the command should go on, else *exit_code is set. */
bool cli_parse(const sl_args_table *table, int argc, char **argv, sl_args_result *result, int *exit_code, sl_err *err);

#endif
