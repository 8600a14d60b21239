/* The engine's inside, shared by the files of this layer. */
#ifndef SL_ENGINE_H
#define SL_ENGINE_H

#include <sluice/sluice.h>

#include "api/estimate.h"
#include "base/log.h"
#include "base/mem.h"
#include "base/thread.h"
#include "base/trace.h"
#include "kernel/kernel.h"
#include "model/weights.h"
#include "store/ioprobe.h"
#include "tok/tok.h"

/* What was measured or found of the disk under a folder. */
typedef struct sl_engine_io {
    char *dir; /* NULL: none yet */
    sl_io_profile profile;
    bool is_known;
    bool was_probed; /* by this engine, with or without success */
} sl_engine_io;

/* Of a second model, which drafts. */
typedef struct sl_draft_model {
    sl_weights *weights; /* NULL: there is none. plan_only: hyper-parameters alone */
    uint64_t map_bytes;  /* that the weights take of the budget */
    bool is_loaded;
} sl_draft_model;

struct sl_engine {
    sl_engine_options options;
    char *path; /* copy of the model's */
    uint64_t ram_bytes;
    uint64_t program_bytes; /* resident before the engine, and what the budget cannot see */
    sl_budget budget;
    sl_log log;
    sl_kernels kernels;
    sl_cpu_level level;
    sl_pool *pool;
    sl_tok *tok;
    uint64_t tok_fingerprint; /* of the vocabulary and its rules */
    bool add_eos; /* to texts with their end, as the file says */
    sl_hparams hp;
    sl_weights *weights; /* NULL: vocab_only. plan_only: described alone */
    sl_model_work work;
    sl_draft_model draft;
    uint64_t load_bytes; /* resident at least while the weights are read, the program included */
    char *chat_template; /* NULL: none in the file; terminated */
    const struct sl_chat_family *chat_family; /* asked for by name; NULL: the file's template decides */
    sl_trace *trace;     /* NULL: none */
    sl_machine_rates rates; /* measured once, by the first who asks */
    sl_engine_io io;
};

/* What may be taken in all beside the program, and what is taken of it already, the model's weights left out; a draft
 * model's that are not loaded (yet) are counted as if they were. used may be more than limit. */
void sl_engine_memory(const sl_engine *engine, uint64_t *limit_bytes, uint64_t *used_bytes);

/* What a model's weights will take of a budget. */
uint64_t sl_engine_count_weights(const sl_gguf *gguf, const sl_hparams *hp);

/* tokenizer.ggml.* of a model file -> tokenizer. */
sl_status sl_engine_load_tok(sl_engine *engine, const sl_gguf *gguf, sl_err *err) SL_CHECK;

#endif
