/* How long a context's work will take: floors from bytes, operations and measured rates.
 * Pure arithmetic, no state. Thread rule: any thread. */
#ifndef SL_API_ESTIMATE_H
#define SL_API_ESTIMATE_H

#include <sluice/sluice.h>

#include "kernel/kernel.h"
#include "model/weights.h"
#include "store/ioprobe.h"

enum { SL_ATTN_POINTS = 5, SL_GEMM_POINTS = 3 };
/* Rows at which rates are measured; between two the time of a pass is taken as a straight line, beyond the last it
 * grows with the rows. */
extern const size_t sl_attn_point_rows[SL_ATTN_POINTS]; /* 1, 4, 16, 64, 256 */
extern const size_t sl_gemm_point_rows[SL_GEMM_POINTS]; /* 1, 16, 128 */

/* 0: not measured. */
typedef struct sl_machine_rates {
    double memory;                                  /* bytes a second */
    double keys[SL_KV_TYPE_COUNT][SL_ATTN_POINTS];  /* stored tokens of one layer a second */
    double madds[SL_WTYPE_COUNT][SL_GEMM_POINTS];   /* multiply-adds a second */
} sl_machine_rates;

/* What a row multiplies, from the model file's tensor table. */
typedef struct sl_model_work {
    uint64_t weight_bytes;        /* of all tensors */
    uint64_t pass_bytes;          /* of those that a pass reads whole: all but experts and an embedding of its own */
    uint64_t expert_bytes;        /* of all experts' tensors */
    double experts_of_row;        /* the share of them that one row takes; 0: no mixture */
    double madds[SL_WTYPE_COUNT]; /* of a row, all layers */
    sl_wtype logit_type;
    double logit_madds; /* of a row's logits */
} sl_model_work;

typedef struct sl_estimate_input {
    const sl_hparams *hp;
    const sl_model_work *work;
    const sl_plan *plan;
    const sl_machine_rates *rates;
    const sl_io_profile *io; /* NULL: not known */
    sl_kv_type type;
    size_t prompt_tokens;
    size_t rows;            /* of a pass */
    uint64_t read_rate;     /* the cap; 0: none */
    bool all_logits;        /* of every row: scoring */
    uint64_t stored_tokens; /* that a file has before the prompt */
    bool keeps;             /* the prompt goes into that file, all of it */
} sl_estimate_input;

void sl_estimate_make(const sl_estimate_input *in, sl_estimate *out);

/* Seconds in which `rows` rows fold `keys` keys of one layer; in which each of `rows` rows takes `madds` multiply-adds.
 * 0 where a rate is missing. */
double sl_estimate_attn_s(const double rates[SL_ATTN_POINTS], double keys, double rows);
double sl_estimate_madds_s(const double rates[SL_GEMM_POINTS], double madds, double rows);

/* Tokens that the windows of a prefill find stored, summed over the windows: what reading them costs is this times a
 * token's bytes. */
uint64_t sl_estimate_stored_tokens(uint64_t prompt_tokens, uint64_t window_tokens);
/* The same of a layer whose rows see `span` tokens: of those stored only from the part on that the span of a window's
 * first row begins in. */
uint64_t sl_estimate_slid_tokens(uint64_t prompt_tokens, uint64_t window_tokens, uint64_t span);

#endif
