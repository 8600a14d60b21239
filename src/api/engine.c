/* Opening a model: budget, kernels, tokenizer, weights, threads. */
#include "api/engine.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "platform/os.h"

enum {
    /* What lives outside the budget's sight: touched stack pages and library state per thread, heap fragmentation,
     * tables of libc and PCRE2, page tables. Measured at 1 to 2 MiB; the rest is margin. */
    PROGRAM_MARGIN = 3 << 20,
    THREAD_MARGIN = 96 << 10,
    UNKNOWN_RSS = 16 << 20 /* where the system does not tell */
};

static void forward_log(void *arg, sl_log_level level, const char *text)
{
    const sl_engine *engine = arg;
    engine->options.log(engine->options.arg, level == SL_LOG_LEVEL_WARNING, text);
}

static sl_status copy_text(sl_budget *budget, const char *data, size_t size, char **out, sl_err *err)
{
    sl_status status = sl_mem_new(budget, size + 1, 1, "text", out, err);
    if (status == SL_OK)
        memcpy(*out, data, size);
    return status;
}

static sl_status set_budget(sl_engine *engine, sl_err *err)
{
    uint64_t ram = engine->options.ram_bytes;
    if (ram == 0)
        ram = sl_os_free_memory_bytes() / 2;
    engine->ram_bytes = ram;
    uint64_t now = sl_os_rss_bytes();
    engine->program_bytes = (now ? now : UNKNOWN_RSS) + PROGRAM_MARGIN;
    engine->program_bytes += engine->options.n_threads * (uint64_t)THREAD_MARGIN;
    sl_budget_init(&engine->budget, ram > engine->program_bytes ? ram - engine->program_bytes : 0);
    uint64_t peak = sl_os_peak_rss_bytes();
    if (ram <= engine->program_bytes || peak > ram)
        return sl_err_set(err, SL_REFUSED,
                          "memory budget of %" PRIu64 " bytes is too small: the program alone needs %" PRIu64, ram,
                          engine->program_bytes);
    return SL_OK;
}

/* Before any is read: each tensor in a mapping of its own, and the buffer they are read through. */
static sl_status check_weights_fit(const sl_engine *engine, const sl_gguf *gguf, sl_err *err)
{
    uint64_t bytes = sl_weights_buffer_bytes(&engine->hp) + engine->hp.n_layers * sizeof(sl_layer_weights);
    uint64_t left = engine->budget.limit_bytes - engine->budget.used_bytes;
    for (size_t i = 0; i < sl_gguf_n_tensors(gguf); i++) {
        const sl_gguf_tensor *tensor = sl_gguf_tensor_at(gguf, i);
        bytes += tensor->n_dims == 1 ? tensor->bytes : (tensor->bytes + SL_MEM_ALIGN - 1) / SL_MEM_ALIGN * SL_MEM_ALIGN;
    }
    if (bytes <= left)
        return SL_OK;
    double mib = 1 << 20;
    return sl_err_set(err, SL_REFUSED,
                      "memory budget of %.1f MiB is too small: weights %.1f MiB, program %.1f, tokenizer %.1f make "
                      "%.1f, and the context comes on top",
                      (double)engine->ram_bytes / mib, (double)bytes / mib, (double)engine->program_bytes / mib,
                      (double)engine->budget.used_bytes / mib,
                      (double)(bytes + engine->program_bytes + engine->budget.used_bytes) / mib);
}

/* The model's own default template, if the file has one. */
static sl_status load_template(sl_engine *engine, const sl_gguf *gguf, sl_err *err)
{
    if (!sl_gguf_find(gguf, "tokenizer.chat_template"))
        return SL_OK;
    sl_gguf_string text;
    sl_status status = sl_gguf_get_string(gguf, "tokenizer.chat_template", &text, err);
    return status == SL_OK ? copy_text(&engine->budget, text.data, text.size, &engine->chat_template, err) : status;
}

static sl_status load_model(sl_engine *engine, const sl_gguf *gguf, sl_err *err)
{
    sl_status status = SL_OK;
    if (!engine->options.vocab_only) {
        status = sl_hparams_read(gguf, &engine->hp, err);
        if (status == SL_OK)
            status = sl_weights_check(gguf, &engine->hp, err);
    }
    if (status == SL_OK)
        status = sl_engine_load_tok(engine, gguf, err);
    if (status == SL_OK)
        status = load_template(engine, gguf, err);
    if (status != SL_OK || engine->options.vocab_only)
        return status;
    if (sl_tok_n_tokens(engine->tok) != engine->hp.n_vocab)
        return sl_err_set(err, SL_DAMAGED, "%s: tokenizer.ggml.tokens has %zu tokens, token_embd.weight %u rows",
                          engine->path, sl_tok_n_tokens(engine->tok), engine->hp.n_vocab);
    status = check_weights_fit(engine, gguf, err);
    if (status == SL_OK)
        status = sl_weights_load(gguf, &engine->budget, engine->options.progress, engine->options.arg,
                                 &engine->weights, err);
    return status;
}

sl_status sl_engine_open(const sl_engine_options *options, sl_engine **out, sl_err *err)
{
    *out = NULL;
    sl_engine *engine = calloc(1, sizeof *engine); /* outside the budget that lies in it */
    if (!engine)
        return sl_err_set(err, SL_FAILED, "out of memory: engine");
    engine->options = *options;
    if (engine->options.n_threads == 0)
        engine->options.n_threads = (uint32_t)sl_os_n_cpus();
    if (options->log)
        engine->log = (sl_log){forward_log, engine};
    sl_gguf *gguf = NULL;
    sl_status status = set_budget(engine, err);
    if (status == SL_OK)
        status = copy_text(&engine->budget, options->model_path, strlen(options->model_path), &engine->path, err);
    if (status == SL_OK)
        status = sl_cpu_find(getenv("SLUICE_CPU"), &engine->level, err);
    if (status == SL_OK) {
        sl_kernels_init(&engine->kernels, engine->level);
        status = sl_gguf_open(options->model_path, &engine->budget, &gguf, err);
    }
    if (status == SL_OK)
        status = load_model(engine, gguf, err);
    sl_gguf_close(gguf);
    if (status == SL_OK && !options->vocab_only)
        status = sl_pool_create(engine->options.n_threads, &engine->budget, &engine->pool, err);
    if (status != SL_OK) {
        sl_engine_close(engine);
        return status;
    }
    *out = engine;
    return SL_OK;
}

void sl_engine_close(sl_engine *engine)
{
    if (!engine)
        return;
    sl_pool_destroy(engine->pool);
    sl_weights_destroy(engine->weights);
    sl_tok_destroy(engine->tok);
    sl_mem_free(&engine->budget, engine->chat_template);
    sl_mem_free(&engine->budget, engine->path);
    sl_budget_deinit(&engine->budget);
    free(engine);
}

void sl_engine_get_info(const sl_engine *engine, sl_engine_info *out)
{
    *out = (sl_engine_info){
        .n_layers = engine->hp.n_layers,
        .n_heads = engine->hp.n_heads,
        .n_kv_heads = engine->hp.n_kv_heads,
        .head_dim = engine->hp.head_dim,
        .n_embd = engine->hp.n_embd,
        .n_vocab = (uint32_t)sl_tok_n_tokens(engine->tok),
        .n_ctx_train = engine->hp.n_ctx_train,
        .weight_bytes = engine->weights ? engine->weights->bytes : 0,
        .ram_bytes = engine->ram_bytes,
        .n_threads = engine->options.n_threads,
        .cpu_level = sl_cpu_level_name(engine->level),
    };
}

const char *sl_engine_kernel(const sl_engine *engine, size_t i, const char **level)
{
    if (i >= SL_KERNEL_COUNT)
        return NULL;
    *level = sl_cpu_level_name(engine->kernels.level[i]);
    return sl_kernel_name(i);
}
