#include "common/prophet.h"

#include <assert.h>
#include <string.h>

static uint64_t next_random(prophet *p)
{
    p->random = p->random * UINT64_C(6364136223846793005) + UINT64_C(1442695040888963407);
    return p->random >> 33;
}

/* What plain decoding draws `ahead` tokens from here; behind its end, anything. */
static int32_t truth_at(const prophet *p, const sl_draft_ask *ask, size_t ahead)
{
    const size_t at = ask->n - p->n_prompt + ahead;
    return at < p->n_truth ? p->truth[at] : 65;
}

static int32_t second_at(const prophet *p, const sl_draft_ask *ask, size_t ahead)
{
    const size_t at = ask->n - p->n_prompt + ahead;
    return at < p->n_truth ? p->second[at] : 66;
}

static size_t most_of(const sl_draft_ask *ask)
{
    return ask->max_nodes < ask->max_depth ? ask->max_nodes : ask->max_depth;
}

sl_status prophet_foretell(void *self, const sl_draft_ask *ask, sl_draft_tree *tree, sl_err *err)
{
    (void)err;
    prophet *p = self;
    int32_t parent = SL_DRAFT_ROOT;
    for (size_t i = 0; i < ask->max_depth && tree->n < ask->max_nodes; i++) {
        const bool branches = ask->may_branch && tree->n + 3 <= ask->max_nodes && i + 1 < ask->max_depth;
        const bool before = branches && next_random(p) % 2;
        int32_t node = (int32_t)tree->n + (before ? 2 : 0);
        for (int half = 0; half < 2; half++) {
            if ((half == 1) == before)
                sl_draft_tree_add(tree, truth_at(p, ask, i), parent, 0.9f);
            else if (branches) {
                sl_draft_tree_add(tree, second_at(p, ask, i), parent, 0.1f);
                sl_draft_tree_add(tree, truth_at(p, ask, i + 1), (int32_t)tree->n - 1, 0.5f);
            }
        }
        parent = node;
    }
    return SL_OK;
}

sl_status prophet_mislead(void *self, const sl_draft_ask *ask, sl_draft_tree *tree, sl_err *err)
{
    (void)err;
    for (size_t i = 0; i < most_of(ask); i++)
        sl_draft_tree_add(tree, truth_at(self, ask, i) ^ 1, (int32_t)i - 1, 1.0f);
    return SL_OK;
}

sl_status prophet_tempt(void *self, const sl_draft_ask *ask, sl_draft_tree *tree, sl_err *err)
{
    (void)err;
    prophet *p = self;
    static int32_t dream[PROPHET_MOST];
    static float logits[1024];
    const size_t most = most_of(ask), wrong = most > 0 ? next_random(p) % most : 0;
    assert(ask->n + most <= PROPHET_MOST);
    memcpy(dream, ask->history, ask->n * sizeof *dream);
    for (size_t i = 0; i < most; i++) {
        const bool is_wrong = i == wrong || next_random(p) % 16 == 0;
        dream[ask->n + i] = is_wrong ? second_at(p, ask, i) : truth_at(p, ask, i);
        sl_draft_tree_add(tree, dream[ask->n + i], (int32_t)i - 1, 0.8f);
        if (ask->sampler && next_random(p) % 4 == 0)
            (void)sl_sampler_draw(ask->sampler, logits, dream, ask->n + i + 1);
    }
    return SL_OK;
}

sl_status prophet_rave(void *self, const sl_draft_ask *ask, sl_draft_tree *tree, sl_err *err)
{
    (void)err;
    prophet *p = self;
    const size_t n = next_random(p) % (ask->max_nodes + 1);
    size_t depths[SL_MAX_DRAFTS] = {0};
    for (size_t i = 0; i < n; i++) {
        int32_t parent = ask->may_branch ? (int32_t)(next_random(p) % (i + 1)) - 1 : (int32_t)i - 1;
        while (parent >= 0 && depths[parent] + 1 >= ask->max_depth)
            parent = ask->may_branch ? parent - 1 : SL_DRAFT_ROOT;
        depths[i] = parent < 0 ? 0 : depths[parent] + 1;
        if (!ask->may_branch && i >= ask->max_depth)
            break;
        const uint64_t kind = next_random(p) % 8;
        int32_t id = kind < 5 ? truth_at(p, ask, depths[i]) : (int32_t)(next_random(p) % p->n_vocab);
        if (next_random(p) % 64 == 0)
            id = kind % 2 ? -1 : (int32_t)p->n_vocab;
        sl_draft_tree_add(tree, id, parent, (float)(kind % 5) / 4.0f);
    }
    return SL_OK;
}
