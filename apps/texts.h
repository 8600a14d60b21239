/* The texts of a command line in a stated order: files, folders walked and patterns matched in byte order of names,
 * standard input.
 * Owns the paths. Thread rule: one thread. */
#ifndef SL_TEXTS_H
#define SL_TEXTS_H

#include <sys/stat.h>

#include "common/args.h"

typedef struct cli_texts {
    char **paths; /* [n], owned; "-" is standard input */
    size_t n, room;
    struct stat left_out[2]; /* files that walks and patterns pass over: the output, and what will replace it */
    size_t n_left_out;
} cli_texts;

/* Values of an option and bare words as they were mixed on the command line; argv [argc] is what was parsed. A folder
 * becomes the regular files under it whose names, and whose folders' names, do not begin with a dot; links are not
 * followed. A name of nothing, with any of * ? [ in it, is a pattern (glob): its matches, each a file or a folder.
 * The outputs (NULL: none; they may not exist) are passed over. SL_USAGE: standard input twice. SL_FAILED: a folder
 * that cannot be read or holds nothing, a pattern that nothing matches. Freed by cli_texts_free in any case. */
sl_status cli_texts_find(int argc, char *const *argv, const sl_arg_list *values, const sl_args_result *words,
                         const char *const outputs[2], cli_texts *out, sl_err *err) SL_TEXT_CHECK;
void cli_texts_free(cli_texts *texts);

#endif
