/* Merging the neighbours of a run of symbols: again and again those of the lowest rank, the leftmost first.
 *
 * Owns nothing; what two symbols become, and in which order, is the caller's. In a long run the mergeable ones wait in
 * a heap that knows where each stands, so that nothing outdated stays in it: O(n log n) time and bounded memory
 * whatever the text. The few symbols of a word are quicker by a plain scan. */
#ifndef SL_MERGE_H
#define SL_MERGE_H

#include <stdint.h>
#include <string.h>

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

/* A run of few symbols, which are numbers of the caller's choice: ids, say, or places in the text. */
enum { SL_MERGE_SHORT = 64 };
typedef struct sl_short_merging {
    /* Rank of the merge of at[0] and at[1]; at[2] stands behind them. SL_MERGE_NONE: no merge. */
    uint32_t (*rank)(const void *arg, const uint32_t *at);
    uint32_t (*join)(const void *arg, uint32_t left, uint32_t rank); /* what they become */
    const void *arg;
} sl_short_merging;

/* symbols [n + 1], n up to SL_MERGE_SHORT: the last is what stands behind them. Returns how many remain; what stood
 * behind them still does. Inline, so that the two functions are part of the loop. */
static inline uint32_t sl_merge_short(const sl_short_merging *m, uint32_t *symbols, uint32_t n)
{
    uint32_t ranks[SL_MERGE_SHORT]; /* of the merge of symbols i and i + 1 */
    for (uint32_t i = 0; i + 1 < n; i++)
        ranks[i] = m->rank(m->arg, symbols + i);
    while (n > 1) {
        uint32_t best = 0;
        for (uint32_t i = 1; i + 1 < n; i++)
            if (ranks[i] < ranks[best])
                best = i;
        if (ranks[best] == SL_MERGE_NONE)
            break;
        symbols[best] = m->join(m->arg, symbols[best], ranks[best]);
        memmove(symbols + best + 1, symbols + best + 2, (n - best - 1) * sizeof *symbols);
        n--;
        if (best + 1 < n) {
            memmove(ranks + best + 1, ranks + best + 2, (n - best - 2) * sizeof *ranks);
            ranks[best] = m->rank(m->arg, symbols + best);
        }
        if (best > 0)
            ranks[best - 1] = m->rank(m->arg, symbols + best - 1);
    }
    return n;
}

#endif
