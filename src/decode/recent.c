#include "decode/recent.h"

#include <string.h>

struct sl_recent {
    sl_budget *budget;
    size_t last_n, n_vocab;
    size_t first, end; /* counted is history[first..end) */
    size_t known;      /* of what is counted, [known, end) stands in tail, too */
    uint32_t *counts;  /* [n_vocab] */
    int32_t tail[SL_RECENT_TAIL]; /* token i of the text at i % SL_RECENT_TAIL */
};

uint64_t sl_recent_bytes(size_t n_vocab)
{
    return n_vocab * sizeof(uint32_t) + sizeof(sl_recent) + 2 * SL_MEM_ALIGN;
}

sl_status sl_recent_create(size_t last_n, size_t n_vocab, sl_budget *budget, sl_recent **out, sl_err *err)
{
    *out = NULL;
    sl_recent *r = NULL;
    sl_status status = sl_mem_new(budget, 1, sizeof *r, "token counts", &r, err);
    if (status != SL_OK)
        return status;
    *r = (sl_recent){.budget = budget, .last_n = last_n, .n_vocab = n_vocab};
    status = sl_mem_new(budget, n_vocab, sizeof *r->counts, "token counts", &r->counts, err);
    if (status != SL_OK) {
        sl_recent_destroy(r);
        return status;
    }
    *out = r;
    return SL_OK;
}

void sl_recent_destroy(sl_recent *r)
{
    if (!r)
        return;
    sl_mem_free(r->budget, r->counts);
    sl_mem_free(r->budget, r);
}

/* How many of the tokens that were counted still stand in history[0..n); 0 where that cannot be told. */
static size_t still_standing(const sl_recent *r, const int32_t *history, size_t n)
{
    const size_t high = n < r->end ? n : r->end;
    size_t i = r->known;
    while (i < high && r->tail[i % SL_RECENT_TAIL] == history[i])
        i++;
    return i > r->known ? i : 0;
}

static void count_nothing(sl_recent *r)
{
    memset(r->counts, 0, r->n_vocab * sizeof *r->counts);
    r->first = r->end = r->known = 0;
}

const uint32_t *sl_recent_count(sl_recent *r, const int32_t *history, size_t n)
{
    const size_t first = n > r->last_n ? n - r->last_n : 0, stand = still_standing(r, history, n);
    if (stand == 0)
        count_nothing(r);
    /* Off its end, what stands no more; then its beginning moves back or forth, which may empty it. */
    for (; r->end > stand; r->end--)
        if (r->end > r->first)
            r->counts[r->tail[(r->end - 1) % SL_RECENT_TAIL]]--;
    if (r->first > r->end)
        r->first = r->end;
    while (r->first > first)
        r->counts[history[--r->first]]++;
    for (; r->end < n; r->end++) {
        r->tail[r->end % SL_RECENT_TAIL] = history[r->end];
        r->counts[history[r->end]]++;
        if (r->end - r->known >= SL_RECENT_TAIL)
            r->known++;
    }
    while (r->first < first)
        r->counts[history[r->first++]]--;
    return r->counts;
}
