/* Drafters that know what plain decoding draws, for tests of bursts: right, wrong, nearly right, mad. */
#ifndef PROPHET_H
#define PROPHET_H

#include "decode/drafter.h"

enum { PROPHET_MOST = 8192 }; /* tokens of a text, drafts included; of a vocabulary 1,024 */

typedef struct prophet {
    const int32_t *truth;  /* [n_truth] what is drawn behind a prompt of n_prompt tokens */
    const int32_t *second; /* [n_truth] the best one that is not */
    size_t n_truth, n_prompt, n_vocab;
    uint64_t random;
} prophet;

/* self: a prophet. A chain of what is drawn; with branches, beside each node, before or behind it, the runner-up and a
 * node below it. */
sl_status prophet_foretell(void *self, const sl_draft_ask *ask, sl_draft_tree *tree, sl_err *err);
/* Never what is drawn, and sure of it. */
sl_status prophet_mislead(void *self, const sl_draft_ask *ask, sl_draft_tree *tree, sl_err *err);
/* What would almost be drawn: the truth with the runner-up in one place, or a few, and the truth again behind it. And
 * it uses the burst's sampler for texts that never come true. */
sl_status prophet_tempt(void *self, const sl_draft_ask *ask, sl_draft_tree *tree, sl_err *err);
/* Ids that do not exist, siblings that are twins, parents anywhere; now and then the truth. */
sl_status prophet_rave(void *self, const sl_draft_ask *ask, sl_draft_tree *tree, sl_err *err);

#endif
