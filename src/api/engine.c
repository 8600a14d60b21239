/* Opening a model: budget, kernels, tokenizer, weights, threads. */
#include "api/engine.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "api/chat_family.h"
#include "api/draft_model.h"
#include "api/plan.h"
#include "base/hash.h"
#include "model/weight_stream.h"
#include "platform/os.h"

enum {
    /* What lives outside the budget's sight: touched stack pages and library state per thread, heap fragmentation,
     * tables of libc and PCRE2, page tables. Measured at 1 to 2 MiB; the rest is margin. A thread's stack is largest in
     * a projection by AMX, 96 KiB, which calls AVX-512's for the last few rows, 44 more. */
    PROGRAM_MARGIN = 3 << 20,
    THREAD_MARGIN = 160 << 10,
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

/* Where nothing is known of the model yet: weights are packed to the size that they have in the file, and this much and
 * an eighth of them has always done for the rest. */
static uint64_t generous(uint64_t file_bytes)
{
    return file_bytes + file_bytes / 8 + (UINT64_C(192) << 20);
}

static double mib(uint64_t bytes)
{
    return (double)bytes / (double)(1 << 20);
}

static uint64_t whole_mib(uint64_t bytes)
{
    return (bytes + (1 << 20) - 1) >> 20;
}

/* A budget refused before anything is known of the model: a figure all the same. */
static sl_status refuse_early(const sl_engine *engine, const char *cause, sl_err *err)
{
    sl_input *file = NULL;
    uint64_t file_bytes = 0;
    sl_status status = sl_input_open(engine->options.model_path, &file, &file_bytes, err);
    sl_input_close(file);
    if (status != SL_OK)
        return status;
    return sl_err_set(err, SL_REFUSED, "%s; %" PRIu64 "M would do for this model", cause,
                      whole_mib(generous(file_bytes)));
}

/* A plan may be about more memory than this machine has, or less than the program needs: its own work, which is small,
 * is bounded apart from what it is about. */
static sl_status set_budget(sl_engine *engine, sl_err *err)
{
    const uint64_t plan_least = UINT64_C(48) << 20;
    uint64_t ram = engine->options.ram_bytes;
    if (ram == 0)
        ram = sl_os_free_memory_bytes() / 2;
    engine->ram_bytes = ram;
    uint64_t now = sl_os_rss_bytes();
    engine->program_bytes = (now ? now : UNKNOWN_RSS) + PROGRAM_MARGIN;
    engine->program_bytes += engine->options.n_threads * (uint64_t)THREAD_MARGIN;
    uint64_t limit = ram > engine->program_bytes ? ram - engine->program_bytes : 0;
    if (engine->options.plan_only && limit < plan_least)
        limit = plan_least;
    sl_budget_init(&engine->budget, limit);
    uint64_t peak = sl_os_peak_rss_bytes();
    if (engine->options.plan_only || (ram > engine->program_bytes && ram >= peak))
        return SL_OK;
    char cause[160];
    snprintf(cause, sizeof cause,
             "memory budget of %" PRIu64 " bytes is too small: the program alone needs %" PRIu64, ram,
             peak > engine->program_bytes ? peak : engine->program_bytes);
    return refuse_early(engine, cause, err);
}

void sl_engine_memory(const sl_engine *engine, uint64_t *limit_bytes, uint64_t *used_bytes)
{
    *limit_bytes = engine->ram_bytes > engine->program_bytes ? engine->ram_bytes - engine->program_bytes : 0;
    *used_bytes = engine->budget.used_bytes - (engine->weights ? sl_weights_memory(engine->weights) : 0) +
                  (engine->draft.is_loaded ? 0 : engine->draft.map_bytes);
}

uint64_t sl_engine_count_weights(const sl_gguf *gguf, const sl_hparams *hp)
{
    enum { HEAP_HEAD = 32 };
    uint64_t bytes = hp->n_layers * sizeof(sl_layer_weights) + sizeof(sl_weights) + 2 * HEAP_HEAD;
    for (size_t i = 0; i < sl_gguf_n_tensors(gguf); i++) {
        const sl_gguf_tensor *tensor = sl_gguf_tensor_at(gguf, i);
        bytes += tensor->n_dims == 1 ? tensor->bytes + HEAP_HEAD
                                     : (tensor->bytes + SL_MEM_ALIGN - 1) / SL_MEM_ALIGN * SL_MEM_ALIGN;
    }
    return bytes;
}

static bool is_named(sl_gguf_string name, const char *text)
{
    return name.size == strlen(text) && memcmp(name.data, text, name.size) == 0;
}

/* The tensors have been checked: their types are known, matrices have two dimensions, stacks three. */
static void count_work(sl_engine *engine, const sl_gguf *gguf)
{
    sl_model_work *work = &engine->work;
    bool has_output = sl_gguf_tensor_find(gguf, "output.weight") != NULL;
    for (size_t i = 0; i < sl_gguf_n_tensors(gguf); i++) {
        const sl_gguf_tensor *tensor = sl_gguf_tensor_at(gguf, i);
        const char *type_name = sl_ggml_type_name(tensor->type);
        size_t type = 0;
        while (type + 1 < SL_WTYPE_COUNT && strcmp(sl_wtype_name((sl_wtype)type), type_name) != 0)
            type++;
        bool is_embedding = is_named(tensor->name, "token_embd.weight");
        bool is_output = is_named(tensor->name, has_output ? "output.weight" : "token_embd.weight");
        bool is_stack = tensor->n_dims == 3; /* of experts, of which a row takes some */
        work->weight_bytes += tensor->bytes;
        work->expert_bytes += is_stack ? tensor->bytes : 0;
        work->pass_bytes += is_stack || (is_embedding && has_output) ? 0 : tensor->bytes;
        double madds = (double)tensor->dims[0] * (double)tensor->dims[1];
        if (is_output) {
            work->logit_type = (sl_wtype)type;
            work->logit_madds = madds;
        } else if (tensor->n_dims >= 2 && !is_embedding) {
            work->madds[type] += madds * (is_stack ? engine->hp.n_used : 1);
        }
    }
    if (engine->hp.n_experts > 0)
        work->experts_of_row = (double)engine->hp.n_used / (double)engine->hp.n_experts;
}

static sl_status refuse_weights(sl_engine *engine, uint64_t least_bytes, sl_err *err)
{
    uint64_t sufficient = 0;
    sl_status status = sl_plan_sufficient(engine, &sufficient, err);
    if (status != SL_OK)
        return status;
    return sl_err_set(err, SL_REFUSED,
                      "memory budget of %.1f MiB is too small: weights at least %.1f MiB of %.1f, the others read from "
                      "flash for each pass; program %.1f, tokenizer %.1f make %.1f, and the context comes on top; %"
                      PRIu64 "M would do for up to %" PRIu32 " tokens",
                      mib(engine->ram_bytes), mib(least_bytes), mib(engine->work.weight_bytes),
                      mib(engine->program_bytes), mib(engine->budget.used_bytes), mib(engine->load_bytes),
                      whole_mib(sufficient), engine->hp.n_ctx_train);
}

/* What the weights may take while the engine has no context. Where not all of them fit, contexts decide how many stay:
 * until then there is room for the making of one. */
static sl_status find_room(sl_engine *engine, uint64_t *room, sl_err *err)
{
    const uint64_t for_small = UINT64_C(4) << 20, buffer = sl_weights_buffer_bytes(&engine->hp);
    const uint64_t left = sl_budget_left(&engine->budget);
    const uint64_t least_bytes = sl_weights_least(engine->weights);
    sl_weight_share all;
    sl_weights_choose(engine->weights, UINT64_MAX, &all);
    const bool is_small = least_bytes == all.memory_bytes;
    const uint64_t loading = (is_small ? all.memory_bytes : engine->weights->fixed_bytes) + buffer;
    engine->load_bytes = engine->program_bytes + engine->budget.used_bytes +
                         (loading > least_bytes ? loading : least_bytes);
    if (engine->options.plan_only)
        return SL_OK;
    if (engine->load_bytes > engine->ram_bytes)
        return refuse_weights(engine, least_bytes, err);
    *room = left > buffer ? left - buffer : 0;
    if (all.memory_bytes + for_small > *room)
        *room = *room - *room / 4 > least_bytes ? *room - *room / 4 : least_bytes;
    return SL_OK;
}

/* Described first: a model that is too large for the budget is not read. */
static sl_status load_weights(sl_engine *engine, const sl_gguf *gguf, sl_err *err)
{
    sl_weights_options options = {
        .budget = &engine->budget,
        .only_describe = true,
        .log = &engine->log,
        .progress = engine->options.progress,
        .arg = engine->options.arg,
    };
    sl_weight_share share;
    sl_status status = sl_weights_open(gguf, &options, &engine->weights, err);
    if (status == SL_OK)
        status = find_room(engine, &options.room_bytes, err);
    if (status != SL_OK || engine->options.plan_only)
        return status;
    sl_weights_destroy(engine->weights);
    engine->weights = NULL;
    options.only_describe = false;
    status = sl_weights_open(gguf, &options, &engine->weights, err);
    return status == SL_OK ? sl_weights_set_room(engine->weights, options.room_bytes, &share, err) : status;
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

/* By name, before anything is read. */
static sl_status choose_template(sl_engine *engine, sl_err *err)
{
    char names[512];
    const char *name = engine->options.chat_template;
    engine->chat_family = name ? sl_chat_family_find(name) : NULL;
    if (name && (!engine->chat_family || engine->chat_family->refusal))
        return sl_err_set(err, SL_USAGE, "unknown chat template '%s', known are %s", name,
                          sl_chat_family_names(names, sizeof names));
    return SL_OK;
}

/* The tokenizer's entries in whatever order; a chat template is no part of it. */
static uint64_t fingerprint_tokenizer(const sl_gguf *gguf)
{
    static const char prefix[] = "tokenizer.ggml.";
    uint64_t sum = 0;
    for (size_t i = 0; i < sl_gguf_n_values(gguf); i++) {
        const sl_gguf_value *value = sl_gguf_value_at(gguf, i);
        if (value->key.size > sizeof prefix - 1 && memcmp(value->key.data, prefix, sizeof prefix - 1) == 0)
            sum += XXH3_64bits_withSeed(value->data, value->data_bytes, sl_hash(value->key.data, value->key.size));
    }
    return sum;
}

static sl_status load_vocabulary(sl_engine *engine, const sl_gguf *gguf, sl_err *err)
{
    sl_status status = sl_engine_load_tok(engine, gguf, err);
    engine->tok_fingerprint = fingerprint_tokenizer(gguf);
    if (status == SL_OK)
        status = load_template(engine, gguf, err);
    if (status != SL_OK || engine->options.vocab_only)
        return status;
    if (sl_tok_n_tokens(engine->tok) != engine->hp.n_vocab)
        return sl_err_set(err, SL_DAMAGED, "%s: tokenizer.ggml.tokens has %zu tokens, token_embd.weight %u rows",
                          engine->path, sl_tok_n_tokens(engine->tok), engine->hp.n_vocab);
    return SL_OK;
}

static sl_status load_model(sl_engine *engine, const sl_gguf *gguf, sl_err *err)
{
    if (engine->options.vocab_only)
        return load_vocabulary(engine, gguf, err);
    sl_status status = sl_hparams_read(gguf, &engine->hp, err);
    if (status == SL_OK)
        status = sl_weights_check(gguf, &engine->hp, err);
    if (status == SL_OK)
        status = load_vocabulary(engine, gguf, err);
    if (status == SL_OK)
        status = sl_pool_create(engine->options.n_threads, &engine->budget, &engine->pool, err);
    if (status != SL_OK)
        return status;
    count_work(engine, gguf);
    return load_weights(engine, gguf, err);
}

static sl_status open_model(sl_engine *engine, sl_err *err)
{
    sl_gguf *gguf = NULL;
    sl_status status = sl_gguf_open(engine->options.model_path, &engine->budget, &gguf, err);
    if (status == SL_OK)
        status = load_model(engine, gguf, err);
    sl_gguf_close(gguf);
    static const char budget_text[] = "memory budget too small:";
    if (status != SL_REFUSED || strncmp(err->text, budget_text, sizeof budget_text - 1) != 0)
        return status;
    sl_err cause = *err;
    return refuse_early(engine, cause.text, err);
}

static void warn_of_threads(const sl_engine *engine)
{
    size_t n_cpus = sl_os_n_cpus();
    if (engine->options.n_threads > n_cpus)
        sl_log_write(&engine->log, SL_LOG_LEVEL_WARNING, "%" PRIu32 " threads share %zu processors: one each is faster",
                     engine->options.n_threads, n_cpus);
}

/* The kernel ends or swaps a process that takes more than there is: the budget cannot be kept then. */
static void warn_of_memory(const sl_engine *engine)
{
    uint64_t available = sl_os_free_memory_bytes();
    if (!engine->options.plan_only && engine->ram_bytes > available)
        sl_log_write(&engine->log, SL_LOG_LEVEL_WARNING,
                     "memory budget of %.0f MiB, but only %.0f are free: the system may end or swap this process",
                     mib(engine->ram_bytes), mib(available));
}

static sl_status open_engine(sl_engine *engine, sl_err *err)
{
    const sl_engine_options *options = &engine->options;
    sl_status status = set_budget(engine, err);
    if (status == SL_OK)
        warn_of_memory(engine);
    if (status == SL_OK)
        status = copy_text(&engine->budget, options->model_path, strlen(options->model_path), &engine->path, err);
    if (status == SL_OK)
        status = sl_cpu_find(getenv("SLUICE_CPU"), &engine->level, err);
    if (status != SL_OK)
        return status;
    sl_kernels_init(&engine->kernels, engine->level);
    status = choose_template(engine, err);
    if (status == SL_OK)
        status = open_model(engine, err);
    if (status == SL_OK && options->draft_model_path && !options->vocab_only)
        status = sl_draft_model_load(engine, err);
    /* Last: a model that is refused has overwritten no file. */
    if (status == SL_OK && options->trace_path)
        status = sl_trace_open(options->trace_path, &engine->trace, err);
    if (status == SL_OK)
        warn_of_threads(engine);
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
    sl_err own = {SL_OK, ""}; /* texts are looked at inside, whether the caller wants them or not */
    sl_status status = open_engine(engine, err ? err : &own);
    if (status != SL_OK) {
        sl_engine_close(engine);
        return status;
    }
    *out = engine;
    return SL_OK;
}

sl_status sl_engine_end_trace(sl_engine *engine, sl_err *err)
{
    sl_trace *trace = engine->trace;
    engine->trace = NULL;
    return sl_trace_close(trace, err);
}

void sl_engine_close(sl_engine *engine)
{
    if (!engine)
        return;
    sl_err err = {SL_OK, ""};
    if (sl_engine_end_trace(engine, &err) != SL_OK)
        sl_log_write(&engine->log, SL_LOG_LEVEL_WARNING, "%s", err.text);
    sl_pool_destroy(engine->pool);
    sl_draft_model_unload(engine);
    sl_weights_destroy(engine->weights);
    sl_tok_destroy(engine->tok);
    sl_mem_free(&engine->budget, engine->io.dir);
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
        .n_sliding_layers = sl_hparams_n_sliding(&engine->hp),
        .sliding_span = engine->hp.sliding_span,
        .weight_bytes = engine->work.weight_bytes,
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
