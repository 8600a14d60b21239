/* A tiny model loaded and sessions on it, for the property tests. */
#ifndef TINY_RUN_H
#define TINY_RUN_H

#include "common/tiny_model.h"
#include "decode/session.h"

typedef struct tiny_run {
    char path[256];
    sl_budget budget;
    sl_weights *weights;
    sl_kernels kernels;
    sl_kv_layer layers[8];
} tiny_run;

/* What may differ without moving a bit. */
typedef struct tiny_ways {
    size_t threads, window_rows, n_slots, slot_parts;
    uint64_t resident_percent;
    size_t max_drafts;
    sl_cpu_level level;
} tiny_ways;

/* Writes the model, loads it, removes the file. Ends the test on failure. */
void tiny_run_open(tiny_run *run, const tiny_model *model, sl_cpu_level level);
void tiny_run_close(tiny_run *run);

/* What tiny_session makes its session from; for tests that add to it or expect it to fail. */
sl_session_options tiny_session_options(tiny_run *run, sl_kv_type type, const tiny_ways *ways, size_t max_tokens,
                                        sl_pool *pool);

/* A session and its pool; ways->level is that of tiny_run_open. */
sl_session *tiny_session(tiny_run *run, sl_kv_type type, const tiny_ways *ways, size_t max_tokens, sl_pool **pool);
void tiny_session_end(sl_session *session, sl_pool *pool);

#endif
