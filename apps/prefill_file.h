/* The context file that a prefill goes into: a new one, the one that is there, or a second one that takes its place.
 *
 *   open -> sl_context_keep by the caller -> end -> close
 *
 * Owns the stores and their locks. Refuses a text that is not the file's or its continuation, another identity, and
 * what would take more room than there is or than is allowed. Thread rule: one thread. */
#ifndef SL_PREFILL_FILE_H
#define SL_PREFILL_FILE_H

#include "cli.h"

typedef struct prefill_request {
    sl_engine *engine;
    sl_context_options *options; /* of the context that will be kept, without its store */
    bool any_cache; /* its cache becomes that of the file that is there */
    const char *output;
    const int32_t *ids; /* [n] the text */
    size_t n;
    bool replace;
    uint64_t max_disk; /* 0: what is free */
    bool (*progress)(void *arg, uint64_t done_bytes, uint64_t total_bytes); /* of taking over; false cancels */
    void *arg;
} prefill_request;

typedef struct prefill_file {
    sl_store *store; /* where the text goes */
    sl_store *old;   /* that `store` will replace; NULL: none */
    char *real;      /* the name that it will take, links followed; NULL: none */
    char *beside;    /* the second file's name: the first one's and ".new" */
    const char *path; /* of `store` */
    bool is_new;      /* made in this run */
    size_t n_kept;    /* tokens of the text that `store` has */
    sl_store_shared shared; /* of them, taken over from `old` in this run */
    sl_store_space space;   /* of `store`, before the work */
} prefill_file;

/* The name of the second file; owned by caller, NULL: out of memory. */
char *prefill_beside(const char *output);

/* Closed by the caller whatever comes back. Prints on stderr what will be kept and what it will take. */
sl_status prefill_file_open(prefill_file *file, const prefill_request *request, sl_err *err) SL_TEXT_CHECK;
/* After the text is in: the second file takes the first one's name. The context can then only be asked what it
 * measured, and destroyed. */
sl_status prefill_file_end(prefill_file *file, sl_err *err) SL_TEXT_CHECK;
/* After an error: a file that this run has made goes, unless it holds what was computed. */
void prefill_file_drop(prefill_file *file);
void prefill_file_close(prefill_file *file);

#endif
