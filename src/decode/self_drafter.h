/* The model drafts for itself: the same weights, but attention over the hot set (attn/hot.h) in place of the whole
 * context. A draft's token costs one row through the weights and nothing from flash.
 *
 * Owns: the hot set, a graph of one row, the draft's own keys and values, a copy of the text. Refuses: nothing; where
 * the guess breaks down (a value that is not finite) it proposes what it has so far. Thread rule: one thread at a time.
 *
 *   create -> the session's graphs get sl_self_hot -> bind to the session's context -> ( propose | settled )*   */
#ifndef SL_SELF_DRAFTER_H
#define SL_SELF_DRAFTER_H

#include "decode/drafter.h"
#include "model/graph.h"

typedef struct sl_self sl_self;

typedef struct sl_self_options {
    const sl_weights *weights; /* borrowed, as all pointers */
    const sl_kernels *kernels;
    sl_pool *pool;
    sl_budget *budget;
    sl_geom geom;
    size_t max_tokens; /* of the text */
    size_t hot_tokens; /* of each layer and KV head */
    size_t max_depth;  /* tokens drafted in a row, at most */
    sl_rope rope; /* dims 0: the model's own */
    sl_hot_policy policy;
    bool (*stop)(void *arg); /* asked between layers; NULL: never */
    void *arg;
} sl_self_options;

sl_status sl_self_create(const sl_self_options *options, sl_self **out, sl_err *err) SL_CHECK;
void sl_self_destroy(sl_self *self);
uint64_t sl_self_bytes(const sl_self_options *options); /* for the plan */

/* For the graphs whose passes it follows. Borrowed until destroy. */
sl_hot *sl_self_hot(const sl_self *self);
/* The context whose tail it reads: the one that those graphs walk. */
void sl_self_bind(sl_self *self, const sl_kv *kv);
sl_drafter sl_self_drafter(sl_self *self); /* borrowed until destroy */

/* The logits of what follows each of n tokens, in order, where the text is history[0..n_history) and the n tokens are
 * its last one and those behind it, whatever would be drawn: what propose draws from, for measuring how good it is.
 * note's logits [n_vocab] are borrowed for the call. n at most max_depth. */
sl_status sl_self_follow(sl_self *self, const int32_t *ids, size_t n, size_t n_history,
                         void (*note)(void *arg, size_t i, const float *logits), void *arg, sl_err *err) SL_CHECK;

#endif
