/* The texts of a command line in a stated order: files, folders walked in byte order of names, standard input.
 * Owns the paths. Thread rule: one thread. */
#ifndef SL_TEXTS_H
#define SL_TEXTS_H

#include <sys/stat.h>

#include "common/args.h"

typedef struct cli_texts {
    char **paths; /* [n], owned; "-" is standard input */
    size_t n, room;
    struct stat left_out; /* a file that a walk passes over: the output */
    bool has_left_out;
} cli_texts;

/* Values of an option and bare words as they were mixed on the command line; argv [argc] is what was parsed. A folder
 * becomes the regular files under it whose names, and whose folders' names, do not begin with a dot; links are not
 * followed; `output` (may not exist) is passed over. SL_USAGE: standard input twice. SL_FAILED: a folder that cannot be
 * read or holds nothing. Freed by cli_texts_free in any case. */
sl_status cli_texts_find(int argc, char *const *argv, const sl_arg_list *values, const sl_args_result *words,
                         const char *output, cli_texts *out, sl_err *err) SL_TEXT_CHECK;
void cli_texts_free(cli_texts *texts);

#endif
