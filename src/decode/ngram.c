#include "decode/ngram.h"

enum {
    MAX_STEPS = 512, /* places looked at per proposal */
    MAX_MATCH = 64,  /* tokens of a match beyond which longer is no better */
    NOWHERE = -1
};

struct sl_ngram {
    sl_budget *budget;
    size_t max_tokens;
    size_t n_indexed; /* history[0..n_indexed) is in the chains */
    unsigned bits;
    int32_t *heads; /* [2^bits] latest place of a hash */
    int32_t *prev;  /* [max_tokens] the place before with the same hash */
};

static unsigned head_bits(size_t max_tokens)
{
    unsigned bits = 8;
    while (bits < 22 && ((size_t)1 << bits) < max_tokens)
        bits++;
    return bits;
}

uint64_t sl_ngram_bytes(size_t max_tokens)
{
    return (max_tokens + ((size_t)1 << head_bits(max_tokens))) * sizeof(int32_t) + 4096;
}

sl_status sl_ngram_create(size_t max_tokens, sl_budget *budget, sl_ngram **out, sl_err *err)
{
    *out = NULL;
    if (max_tokens > INT32_MAX)
        return sl_err_set(err, SL_REFUSED, "n-gram drafter: %zu tokens, expected at most %d", max_tokens, INT32_MAX);
    sl_ngram *ngram = NULL;
    sl_status status = sl_mem_new(budget, 1, sizeof *ngram, "n-gram drafter", &ngram, err);
    if (status != SL_OK)
        return status;
    ngram->budget = budget;
    ngram->max_tokens = max_tokens;
    ngram->bits = head_bits(max_tokens);
    status = sl_mem_new(budget, (size_t)1 << ngram->bits, sizeof *ngram->heads, "n-gram drafter", &ngram->heads, err);
    if (status == SL_OK)
        status = sl_mem_new(budget, max_tokens, sizeof *ngram->prev, "n-gram drafter", &ngram->prev, err);
    if (status != SL_OK) {
        sl_ngram_destroy(ngram);
        return status;
    }
    for (size_t i = 0; i < (size_t)1 << ngram->bits; i++)
        ngram->heads[i] = NOWHERE;
    *out = ngram;
    return SL_OK;
}

void sl_ngram_destroy(sl_ngram *ngram)
{
    if (!ngram)
        return;
    sl_mem_free(ngram->budget, ngram->heads);
    sl_mem_free(ngram->budget, ngram->prev);
    sl_mem_free(ngram->budget, ngram);
}

/* Of the two tokens that end at `end`; Knuth's multiplicative hashing. */
static size_t hash_at(const sl_ngram *ngram, const int32_t *history, size_t end)
{
    uint64_t pair = (uint64_t)(uint32_t)history[end - 1] << 32 | (uint32_t)history[end];
    return (size_t)((pair * UINT64_C(0x9E3779B97F4A7C15)) >> (64 - ngram->bits));
}

/* Places up to n - 2: the end itself is what is looked up. */
static void index_history(sl_ngram *ngram, const int32_t *history, size_t n)
{
    if (ngram->n_indexed == 0)
        ngram->n_indexed = 1;
    for (; ngram->n_indexed + 1 < n; ngram->n_indexed++) {
        size_t hash = hash_at(ngram, history, ngram->n_indexed);
        ngram->prev[ngram->n_indexed] = ngram->heads[hash];
        ngram->heads[hash] = (int32_t)ngram->n_indexed;
    }
}

/* The last that joined a chain leaves first, so each finds itself at its head. */
void sl_ngram_rewind(sl_ngram *ngram, const int32_t *history, size_t n)
{
    while (ngram->n_indexed > 1 && ngram->n_indexed + 1 > n) {
        ngram->n_indexed--;
        ngram->heads[hash_at(ngram, history, ngram->n_indexed)] = ngram->prev[ngram->n_indexed];
    }
}

static size_t match_length(const int32_t *history, size_t end, size_t place)
{
    size_t length = 0;
    while (length <= place && length < MAX_MATCH && history[place - length] == history[end - length])
        length++;
    return length;
}

static sl_status propose(void *self, const sl_draft_ask *ask, sl_draft_tree *tree, sl_err *err)
{
    (void)err;
    sl_ngram *ngram = self;
    const int32_t *history = ask->history;
    size_t n = ask->n;
    if (n < 3 || n > ngram->max_tokens)
        return SL_OK;
    index_history(ngram, history, n);
    size_t best_length = 1, best_place = 0;
    int32_t place = ngram->heads[hash_at(ngram, history, n - 1)];
    for (int step = 0; place != NOWHERE && step < MAX_STEPS && best_length < MAX_MATCH; step++) {
        size_t length = match_length(history, n - 1, (size_t)place);
        if (length > best_length) {
            best_length = length;
            best_place = (size_t)place;
        }
        place = ngram->prev[place];
    }
    if (best_length < 2)
        return SL_OK;
    /* Where the match reaches into what is being proposed, the text repeats itself: so does the proposal. */
    size_t known = n - 1 - best_place, most = ask->max_nodes < ask->max_depth ? ask->max_nodes : ask->max_depth;
    for (size_t i = 0; i < most; i++) {
        int32_t id = i < known ? history[best_place + 1 + i] : tree->nodes[i - known].id;
        sl_draft_tree_add(tree, id, (int32_t)i - 1, 0.0f);
    }
    return SL_OK;
}

static void settled(void *self, const int32_t *history, size_t n)
{
    sl_ngram_rewind(self, history, n);
}

sl_drafter sl_ngram_drafter(sl_ngram *ngram)
{
    return (sl_drafter){"n-gram", propose, settled, ngram};
}
