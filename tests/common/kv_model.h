/* A context beside its plain model in memory: appends go to both, walks are compared byte by byte. */
#ifndef TEST_KV_MODEL_H
#define TEST_KV_MODEL_H

#include <stdbool.h>

#include "store/kv.h"

enum { KV_MODEL_LAYERS = 4 };

typedef struct kv_model {
    sl_geom geom;
    sl_kv_layer layers[KV_MODEL_LAYERS];
    uint64_t max_tokens;
    uint64_t tokens[KV_MODEL_LAYERS];
    uint8_t *groups[KV_MODEL_LAYERS]; /* all tile groups, zero where no token is */
    uint8_t *scratch;                 /* [max_tokens + some] what an append hands over */
    uint64_t random;                  /* state */
    uint32_t n_held;                  /* parts held at once in a walk, at most */
} kv_model;

/* xorshift64*; below n (n > 0) */
uint64_t kv_model_random(kv_model *model, uint64_t n);

void kv_model_init(kv_model *model, const sl_geom *geom, uint64_t max_tokens, uint64_t seed);
void kv_model_deinit(kv_model *model);

/* Appends n tokens to the context's layer, followed by junk that must not be kept; to the model when that worked. */
sl_status kv_model_append(kv_model *model, sl_kv *kv, uint32_t layer, uint64_t n, sl_err *err);

/* Walks one layer; an unequal byte fails the test. *parts counts. Stops after `most` parts. */
sl_status kv_model_walk(kv_model *model, sl_kv *kv, uint32_t layer, uint64_t most, uint64_t *parts, sl_err *err);

/* The unfilled tile group that a layer with the first n_tokens of the model has, zeros behind them. out: one group. */
void kv_model_tail(const kv_model *model, uint32_t layer, uint64_t n_tokens, uint8_t *out);

/* Flash bytes of a whole walk when nothing is resident. */
uint64_t kv_model_flash_bytes(const kv_model *model);
/* Bytes of all full tile groups. */
uint64_t kv_model_full_bytes(const kv_model *model);

#endif
