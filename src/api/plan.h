/* What a context will take, decided before it is made. */
#ifndef SL_API_PLAN_H
#define SL_API_PLAN_H

#include "api/engine.h"
#include "decode/session.h"

/* A session's options from a context's, all but what the plan decides. `layers`: [n_layers], filled in here, borrowed
 * by the result. SL_USAGE for options that make no sense, SL_REFUSED for positions beyond the trained context (not with
 * a plan_only engine). */
sl_status sl_plan_session(sl_engine *engine, const sl_context_options *options, sl_kv_layer *layers,
                          sl_session_options *out, sl_err *err) SL_CHECK;

/* Fills window, ring, reads and resident share of `session` and the plan. The budget is spent in this order: weights
 * and tables (already taken), ring, window up to one segment, resident parts. SL_REFUSED, with the numbers, when the
 * least does not fit or the disk is too small; the plan is then filled in as far as it is known. Measures the disk
 * where the options or a large cache ask for it. */
sl_status sl_plan_make(sl_engine *engine, const sl_context_options *options, sl_session_options *session,
                       sl_plan *plan, sl_err *err) SL_CHECK;

/* What is known of the disk that the options name; NULL: nothing, or it will not be read as it was measured. Borrowed
 * until the next call. */
const sl_io_profile *sl_plan_io(sl_engine *engine, const sl_context_options *options);

/* The estimate of what was planned. io: NULL where nothing is known; rows: of a pass. */
void sl_plan_estimate(const sl_engine *engine, const sl_context_options *options, const sl_plan *plan,
                      const sl_io_profile *io, size_t rows, sl_estimate *out);

/* A budget in bytes that would do for a context of all the tokens that the model was trained for, drafting as the
 * command line does; the weights are counted, loaded or not. */
sl_status sl_plan_sufficient(sl_engine *engine, uint64_t *out_bytes, sl_err *err) SL_CHECK;

#endif
