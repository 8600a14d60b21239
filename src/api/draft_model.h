/* The draft model of an engine: a second model file whose tokens are the first one's. */
#ifndef SL_DRAFT_MODEL_H
#define SL_DRAFT_MODEL_H

#include "api/engine.h"

/* Loads options.draft_model_path beside the model, which is open; plan_only: counts it. SL_REFUSED: its vocabulary is
 * another (naming the first token that differs, or the special one), it is no model that this program knows, or the
 * budget cannot hold it. */
sl_status sl_draft_model_load(sl_engine *engine, sl_err *err) SL_CHECK;
void sl_draft_model_unload(sl_engine *engine);

/* What its weights take of the budget; 0: there is none. */
uint64_t sl_draft_model_bytes(const sl_engine *engine);

#endif
