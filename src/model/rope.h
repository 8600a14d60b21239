/* Rotary positions: the rule by which a model turns queries and keys.
 *
 * Owns: reading the rule from a model file, the frequencies that follow from it. A rule never depends on how much was
 * allocated. Pure functions. Sources: RoFormer (arXiv 2104.09864), YaRN (2309.00071), LongRoPE (2402.13753); Llama-3's
 * rule as its reference code has it. */
#ifndef SL_ROPE_H
#define SL_ROPE_H

#include <stdbool.h>

#include "gguf/gguf.h"
#include "model/arch.h"

typedef enum sl_rope_kind {
    SL_ROPE_KIND_LINEAR, /* position / factor; a factor of 1: none */
    SL_ROPE_KIND_YARN,
    SL_ROPE_KIND_LLAMA3,
    SL_ROPE_KIND_LONG_SHORT, /* LongRoPE: a divisor for each frequency, of texts up to the original length */
    SL_ROPE_KIND_LONG_LONG   /* and of longer ones */
} sl_rope_kind;

typedef struct sl_rope {
    sl_rope_kind kind;
    uint32_t dims; /* of a head: the first so many are turned */
    double base, factor;
    double original;    /* tokens that the model was trained with before it was stretched */
    double magnitude;   /* of sine and cosine, beside what YaRN does */
    double fast, slow;  /* YaRN: dimensions that turn more often than `fast` over the original length keep their
                           frequency, those that turn less often than `slow` have it divided by the factor */
    double low, high;   /* Llama-3: likewise, wavelengths as fractions of the original length */
    double extrapolate; /* YaRN: share of the unscaled frequencies where both mix; 1 */
    double sliding_base; /* of sliding layers, which no rule scales; 0: they are as the others */
} sl_rope;

/* "none", "linear", "yarn", "llama3", "longrope". False: another name. */
bool sl_rope_kind_parse(const char *name, size_t size, sl_rope_kind *out);
const char *sl_rope_kind_name(sl_rope_kind kind);

/* Of a file of the architecture whose heads have head_dim dimensions and that was trained with n_ctx_train tokens.
 * LongRoPE comes out as its short set. */
sl_status sl_rope_read(const sl_gguf *gguf, const sl_arch *arch, uint32_t head_dim, uint32_t n_ctx_train, sl_rope *out,
                       sl_err *err) SL_CHECK;

/* freq[dims / 2]: radians per position. divisors: [dims / 2], of each frequency; NULL: none. The caller has entered
 * sl_fpenv, as below. */
void sl_rope_frequencies(const sl_rope *rope, const float *divisors, double *freq);
/* The same for sliding layers of a rule that has a base of their own. */
void sl_rope_sliding_frequencies(const sl_rope *rope, double *freq);

/* What sine and cosine are multiplied with. */
double sl_rope_magnitude(const sl_rope *rope);

/* Sine and cosine of position `pos`, rounded once: [dims / 2] each. scaled: by the rule; else a sliding layer's. */
void sl_rope_turn(const sl_rope *rope, bool scaled, const double *freq, uint64_t pos, float *cos_out, float *sin_out);

/* Positions are turned as they are, or divided: what the hash below gives 0 for where there are no divisors. */
bool sl_rope_is_plain(const sl_rope *rope);
/* Of everything that sines and cosines depend on, for a context's identity; 0 for a linear rule without divisors. */
uint64_t sl_rope_hash(const sl_rope *rope, const float *divisors);

#endif
