/* The engine's inside, shared by the files of this layer. */
#ifndef SL_ENGINE_H
#define SL_ENGINE_H

#include <sluice/sluice.h>

#include "base/log.h"
#include "base/mem.h"
#include "base/thread.h"
#include "kernel/kernel.h"
#include "model/weights.h"
#include "tok/tok.h"

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
    bool add_eos; /* to texts with their end, as the file says */
    sl_hparams hp;
    sl_weights *weights; /* NULL: vocab_only */
    char *chat_template; /* NULL: none in the file; terminated */
};

/* tokenizer.ggml.* of a model file -> tokenizer. */
sl_status sl_engine_load_tok(sl_engine *engine, const sl_gguf *gguf, sl_err *err) SL_CHECK;


#endif
