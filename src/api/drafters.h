/* Which drafters a context has, what they take, and the one that is not the session's own. */
#ifndef SL_API_DRAFTERS_H
#define SL_API_DRAFTERS_H

#include "api/engine.h"
#include "decode/model_drafter.h"
#include "decode/session.h"

enum { SL_LEAST_HOT_TOKENS = 256 }; /* that are taken without being asked for: fewer guess little */

/* SL_USAGE for drafters or a hot set that cannot be. */
sl_status sl_drafters_check(const sl_engine *engine, const sl_context_options *options, sl_err *err) SL_CHECK;

/* SL_DRAFT_WITH_* that the options ask for, a choice left to us made but for memory; 0 without drafts. max_tokens: the
 * context's. */
unsigned sl_drafters_wanted(const sl_engine *engine, const sl_context_options *options, size_t max_tokens);
/* Of the hot set, where there is memory; 0: none. */
size_t sl_drafters_hot_tokens(const sl_context_options *options, size_t max_tokens);

/* Bytes of the model drafter beside its weights. */
uint64_t sl_drafters_bytes(sl_engine *engine, unsigned drafters, size_t max_tokens);
/* Makes the model drafter if `drafters` has it (else *out is NULL), of a session with these options. */
sl_status sl_drafters_make(sl_engine *engine, unsigned drafters, const sl_session_options *session,
                           sl_model_drafter **out, sl_err *err) SL_CHECK;

#endif
