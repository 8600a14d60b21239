/* Model drafter: another, smaller model of the same vocabulary continues the text.
 *
 * It reads the last tokens alone: its cache holds a window of them, in memory; where the window is full it starts again
 * with the last half. What a burst accepted is read in one pass, what it rejected is cut off. Each draft is the
 * sampler's own draw (the likeliest without one) from this model's logits, at the very position and with the very
 * random number that the burst will use; p is its softmax. A tree takes the next best tokens beside each, as leaves.
 * Where this model breaks down (a NaN, an infinity, a value beyond its cache's type) the draft ends there; text that it
 * breaks down over is left behind, as where the window is full. All other errors are the burst's.
 *
 * Owns: cache, layer graph, a copy of the text. Thread rule: one thread at a time. */
#ifndef SL_MODEL_DRAFTER_H
#define SL_MODEL_DRAFTER_H

#include "decode/drafter.h"
#include "model/graph.h"
#include "store/kv.h"

typedef struct sl_model_drafter sl_model_drafter;

typedef struct sl_model_drafter_options {
    const sl_weights *weights; /* borrowed, as all pointers here */
    const sl_kernels *kernels;
    sl_pool *pool;
    sl_budget *budget;
    const char *dir;      /* of the cache's file, which is never made */
    size_t max_tokens;    /* of the text */
    size_t window_tokens; /* of the cache: 0: 2048; at most what the model was trained for */
    uint64_t weight_bytes; /* that a token goes through; 0: unknown */
    sl_rope rope;         /* dims 0: the model's own */
    bool (*stop)(void *arg); /* asked between layers; NULL: never */
    void *arg;
} sl_model_drafter_options;

/* SL_REFUSED: the budget. */
sl_status sl_model_drafter_create(const sl_model_drafter_options *options, sl_model_drafter **out,
                                  sl_err *err) SL_CHECK;
void sl_model_drafter_destroy(sl_model_drafter *drafter);
/* All that it takes, the cache included, without the weights. For the plan. */
uint64_t sl_model_drafter_bytes(const sl_model_drafter_options *options);
sl_drafter sl_model_drafter_drafter(sl_model_drafter *drafter); /* borrowed until destroy */

#endif
