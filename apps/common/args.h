/* Command-line options from a table: parsing, ranges, nearest suggestions and --help all come from it.
 * Owns nothing: values are written where the table points, strings are borrowed from argv. Refuses, in one line
 * that names option, value and what was expected: unknown options, missing values, trailing junk, overflow,
 * values out of range, an option given twice (lists excepted).
 * Accepted forms: --opt value, --opt=value, -o value, -ovalue; "--" ends the options; "-" is a value.
 * Thread rule: one thread at a time per table. */
#ifndef SL_ARGS_H
#define SL_ARGS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>

#include <sluice/status.h>

#include "common/text.h"

#define SL_ARGS_OPTIONS_MAX 64
#define SL_ARGS_VALUES_MAX 256 /* positional words, and values of a repeated option */

typedef enum sl_arg_kind {
    SL_ARG_KIND_FLAG,   /* bool: set to true */
    SL_ARG_KIND_INT,    /* int64_t in [min, max] */
    SL_ARG_KIND_SIZE,   /* int64_t bytes in [min, max]; K M G T or Ki Mi Gi Ti are powers of 1024 */
    SL_ARG_KIND_TOKENS, /* int64_t tokens in [min, max]; 1K = 1,024, 1M = 1,048,576 */
    SL_ARG_KIND_FLOAT,  /* double in [low, high]; no NaN, no infinity */
    SL_ARG_KIND_STRING, /* const char *: not empty unless allow_empty */
    SL_ARG_KIND_LIST,   /* sl_arg_list: a string that may be given again and again */
    SL_ARG_KIND_CHOICE  /* int: index into choices */
} sl_arg_kind;

typedef struct sl_arg_list {
    const char *items[SL_ARGS_VALUES_MAX]; /* borrowed from argv */
    size_t n_items;
} sl_arg_list;

/* One option. `out` keeps what it held, the default, when the option is not given. */
typedef struct sl_arg {
    const char *name; /* long, without dashes */
    char letter;      /* short, or 0 */
    sl_arg_kind kind;
    void *out;
    bool *given;                /* may be NULL; set to true when the option is given */
    int64_t min, max;           /* INT, SIZE, TOKENS; both 0: [0, INT64_MAX] */
    double low, high;           /* FLOAT */
    const char *const *choices; /* CHOICE; ends with NULL */
    bool required;
    bool allow_empty;
    const char *metavar; /* --help: "MODEL.gguf"; NULL: from the kind */
    const char *group;   /* --help: heading; NULL: that of the option before */
    const char *help;
    const char *default_text; /* --help: "half of what is free"; NULL: none is shown */
} sl_arg;

typedef struct sl_args_table {
    const char *usage; /* "sluice run -m MODEL.gguf -f DOC.txt -p QUESTION [options]" */
    const char *about; /* a sentence or two; may be NULL */
    const sl_arg *options;
    size_t n_options;       /* <= SL_ARGS_OPTIONS_MAX */
    size_t min_words;       /* positional words expected */
    size_t max_words;       /* <= SL_ARGS_VALUES_MAX */
    const char *words_name; /* "MODEL.gguf", for the error text */
} sl_args_table;

typedef struct sl_args_result {
    const char *words[SL_ARGS_VALUES_MAX]; /* borrowed from argv */
    size_t n_words;
    bool help; /* -h or --help was seen: nothing else was checked */
} sl_args_result;

/* argv[0] is the first argument, not the program. SL_OK or SL_USAGE; after SL_USAGE some values may already be
 * written. */
sl_status sl_args_parse(const sl_args_table *table, int argc, char *const *argv, sl_args_result *out,
                        sl_err *err) SL_TEXT_CHECK;

void sl_args_print_help(const sl_args_table *table, FILE *file);

/* The candidate nearest to `word` when it is near enough to be meant, else NULL. For subcommands too. */
const char *sl_args_nearest(const char *word, const char *const *candidates, size_t n_candidates);

/* The value parsers alone. False: not one (junk, empty, white space, overflow). */
bool sl_args_int(const char *text, int64_t *out);
bool sl_args_size(const char *text, int64_t *out);
bool sl_args_float(const char *text, double *out);

#endif
