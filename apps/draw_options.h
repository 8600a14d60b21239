/* How an answer is drawn: the sampling options of the command line, the same for run and chat. Owns: nothing; texts are
 * borrowed from argv. Thread rule: one thread. */
#ifndef SL_DRAW_OPTIONS_H
#define SL_DRAW_OPTIONS_H

#include "cli.h"

typedef struct cli_draw {
    double temp, top_p, min_p, repeat_penalty, presence_penalty, frequency_penalty;
    int64_t top_k, seed, repeat_last_n;
    sl_arg_list stops, biases;
    int32_t bias_ids[SL_ARGS_VALUES_MAX]; /* -1: spelt as text, until cli_draw_start */
    float bias_values[SL_ARGS_VALUES_MAX];
} cli_draw;

enum { CLI_DRAW_OPTIONS = 11 };
/* Their group, and their defaults in *d; returns how many. */
size_t cli_draw_options(cli_draw *d, sl_arg *out);
/* What can be told before a model is there. */
sl_status cli_draw_check(cli_draw *d, sl_err *err);
/* Of *out what these options say; d must outlive it. Names what the model's vocabulary has not. */
sl_status cli_draw_start(cli_draw *d, sl_engine *engine, sl_draw_options *out, sl_err *err);

#endif
