/* A context file of the public API, inside. */
#ifndef SL_API_STORE_H
#define SL_API_STORE_H

#include "api/engine.h"
#include "platform/os.h"
#include "store/durable.h"

struct sl_store {
    sl_engine *engine; /* NULL: opened for looking */
    sl_budget budget;  /* without an engine */
    sl_durable *durable;
    bool in_use; /* a context has it */
};

/* What a context of this engine and these options must have in common with a file. */
void sl_store_identity(const sl_engine *engine, const sl_context_options *options, sl_identity *out);

/* rope_choice.c: the rule of rotary positions of a context, whose options sl_rope_check has passed; the tokens that the
 * model was trained for by it; options that make an identity's rule. */
sl_rope sl_engine_rope(const sl_engine *engine, const sl_context_options *options);
sl_status sl_rope_check(const sl_engine *engine, const sl_context_options *options, sl_err *err) SL_CHECK;
uint64_t sl_rope_trained_tokens(const sl_engine *engine, const sl_context_options *options);
/* Cuts a context that will be fed so many tokens to what LongRoPE's short set serves. */
sl_status sl_rope_check_length(const sl_engine *engine, const sl_context_options *options, size_t *n_context,
                               size_t fed, sl_err *err) SL_CHECK;
void sl_rope_options_of(const sl_identity *identity, sl_context_options *out);

/* Before a context takes the file: same engine, same identity, has the tokens that are wanted. */
sl_status sl_store_check(const sl_engine *engine, const sl_context_options *options, sl_err *err) SL_CHECK;
/* Before a context of n_tokens is kept in it: it is open for writing and has room. */
sl_status sl_store_expect_room(const sl_store *store, size_t n_tokens, sl_err *err) SL_CHECK;

/* Whether the path leads to the file that it led to before. */
bool sl_store_is_named(const char *path, const sl_os_file *before);

/* Free bytes of the file system that `path` lies or would lie on; UINT64_MAX: it does not count them. */
sl_status sl_store_find_free(const char *path, uint64_t *out_bytes, sl_err *err) SL_CHECK;

/* Memory that sl_context_save takes. */
uint64_t sl_store_save_bytes(const sl_geom *geom, uint64_t max_tokens);

/* [n_layers], freed by the caller from the engine's budget; NULL: no memory. Of what a context of these options has. */
sl_kv_layer *sl_store_layers(sl_engine *engine, sl_err *err);
sl_geom sl_store_geom(const sl_engine *engine, const sl_context_options *options, const sl_kv_layer *layers);

#endif
