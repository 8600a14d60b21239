/* What a context will take, decided before it is made. Pure arithmetic over sizes. */
#ifndef SL_API_PLAN_H
#define SL_API_PLAN_H

#include "api/engine.h"
#include "decode/session.h"

/* Fills window, ring and resident share of `session` (all else is set) and the plan. The budget is spent in this
 * order: weights and tables (already taken), ring, window up to one segment, resident parts. SL_REFUSED, with the
 * numbers, when the least does not fit or the disk is too small. */
sl_status sl_plan_make(const sl_engine *engine, const sl_context_options *options, sl_session_options *session,
                       sl_plan *plan, sl_err *err) SL_CHECK;

#endif
