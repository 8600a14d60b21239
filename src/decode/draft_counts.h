/* What drafting proposed, what came of it, and the time that it took. */
#ifndef SL_DRAFT_COUNTS_H
#define SL_DRAFT_COUNTS_H

#include "decode/drafter.h"

enum { SL_DRAFT_DEPTHS = 16 }; /* the last stands for all deeper ones */

typedef struct sl_draft_counts {
    /* [drafter][depth]: nodes that went into a pass, and those of them that were drawn. One that several drafters
     * proposed counts for each. Depth 0 follows the text's last token. */
    size_t proposed[SL_MAX_DRAFTERS][SL_DRAFT_DEPTHS], accepted[SL_MAX_DRAFTERS][SL_DRAFT_DEPTHS];
    size_t n_asked[SL_MAX_DRAFTERS];   /* proposals */
    double drafter_s[SL_MAX_DRAFTERS]; /* in each drafter */
    double draft_s, pass_s, accept_s;  /* in all drafters; in passes; logits, drawing, accepting */
    size_t n_tree_passes;              /* of which rows branched */
} sl_draft_counts;

#endif
