/* A context file that is made from what is stored already (fork.c, save.c). It has its name when it is finished, and is
 * gone when it is closed before. */
#ifndef SL_API_NEW_FILE_H
#define SL_API_NEW_FILE_H

#include "store/durable.h"
#include "store/kv.h"

typedef struct sl_new_file {
    sl_durable *durable; /* made by the user, with name_last */
    sl_kv *kv;           /* what the tokens behind the whole segments go through */
    bool (*progress)(void *arg, uint64_t done_bytes, uint64_t total_bytes); /* NULL: none */
    void *arg;
    uint64_t before_bytes, total_bytes; /* done by the steps before the one under way; of all */
} sl_new_file;

/* Early: the name is given last, and would be refused then. */
sl_status sl_new_file_expect_name(const char *path, sl_err *err) SL_CHECK;
sl_status sl_new_file_open_kv(sl_new_file *file, uint64_t n_tokens, sl_budget *budget, sl_err *err) SL_CHECK;
/* All n_tokens are in: committed, finished, named. */
sl_status sl_new_file_end(sl_new_file *file, const int32_t *ids, uint64_t n_tokens, sl_err *err) SL_CHECK;
void sl_new_file_close(sl_new_file *file);

/* For sl_durable_watch; arg: the file. */
bool sl_new_file_step(void *arg, uint64_t done_bytes, uint64_t total_bytes);

#endif
