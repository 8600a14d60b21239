/* Inside the plan: shared by plan.c, plan_session.c and plan_memory.c. */
#ifndef SL_API_PLAN_IMPL_H
#define SL_API_PLAN_IMPL_H

#include "api/plan.h"

enum { SL_PLAN_TALK_ROWS = 1024 }; /* what a message has at most, as a rule, and so the window of a talk */

/* That the context starts with. */
size_t sl_plan_stored_tokens(const sl_context_options *options);
/* The folder of the cache: borrowed from the options or the environment. */
const char *sl_plan_kv_dir(const sl_context_options *options);

/* Spends the budget: fills in the plan but for the disk's free bytes, and the session's ring, window and resident
 * share. SL_REFUSED: it is too small, with the numbers. */
sl_status sl_plan_spend(sl_engine *engine, const sl_context_options *options, sl_session_options *session,
                        sl_plan *plan, sl_err *err) SL_CHECK;

#endif
