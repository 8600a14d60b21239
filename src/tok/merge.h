/* Merging the neighbours of a long run of symbols: again and again those of the lowest rank, the leftmost first.
 *
 * Owns nothing; what two symbols become, and in which order, is the caller's. The mergeable ones wait in a heap that
 * knows where each stands, so that nothing outdated stays in it: O(n log n) time and bounded memory whatever the text.
 * Short runs are quicker by a plain scan, which each kind of tokenizer has in its own way. */
#ifndef SL_MERGE_H
#define SL_MERGE_H

#include <stdint.h>

#define SL_MERGE_NONE UINT32_MAX      /* no merge; no neighbour */
#define SL_MERGE_ARRAYS 5             /* of n numbers each, besides the caller's own */

typedef struct sl_merging {
    uint32_t n;     /* positions, below 2^31: a symbol is known by that of its beginning, the first one's is 0 */
    uint32_t *next; /* [n] the symbol behind; SL_MERGE_NONE: none. Filled by the caller; afterwards those that remain */
    uint32_t *rest; /* [(SL_MERGE_ARRAYS - 1) * n] scratch, behind next */
    /* Rank of the merge of neighbours; the symbol behind them begins at `end` (n: none). SL_MERGE_NONE: no merge. */
    uint32_t (*rank)(void *arg, uint32_t left, uint32_t right, uint32_t end);
    /* They have become one, which begins at `left`. NULL: nothing to note. */
    void (*join)(void *arg, uint32_t left, uint32_t rank);
    void *arg;
} sl_merging;

void sl_merge_run(const sl_merging *merging);

#endif
