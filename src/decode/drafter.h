/* What proposes the tokens that a burst verifies. A drafter changes the speed, never the text.
 *
 * A proposal is a tree of nodes, parents before children: a chain is the tree in which each node's parent is the one
 * before it. Siblings with the same id, ids that do not exist, and nodes beyond what was asked for are dropped by the
 * burst. */
#ifndef SL_DRAFTER_H
#define SL_DRAFTER_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "decode/sampler.h"

enum {
    SL_MAX_DRAFTS = 255,
    SL_MAX_DRAFTERS = 8, /* in a session's list */
    SL_DRAFT_ROOT = -1
};

typedef struct sl_draft_node {
    int32_t id;
    int32_t parent;  /* index of an earlier node; SL_DRAFT_ROOT: follows the text's last token */
    float p;         /* the drafter's own estimate that this is drawn if its parent was, 0 to 1; 0: unknown */
    uint8_t drafter; /* who proposed it: index in the session's list; filled in by the burst */
} sl_draft_node;

typedef struct sl_draft_tree {
    size_t n, cap;
    sl_draft_node *nodes; /* [cap] */
} sl_draft_tree;

/* n < cap */
static inline void sl_draft_tree_add(sl_draft_tree *tree, int32_t id, int32_t parent, float p)
{
    tree->nodes[tree->n++] = (sl_draft_node){id, parent, p, 0};
}

typedef struct sl_draft_ask {
    const int32_t *history; /* the text so far; its last token is not computed yet */
    size_t n;               /* of the history */
    size_t max_nodes, max_depth;
    bool may_branch; /* false: a chain */
    /* The burst's own; NULL: greedy. A drafter that has logits draws with it as the burst will: the same number for the
     * same position, so that a good guess of the logits is a good guess of the draw at any temperature. */
    sl_sampler *sampler;
} sl_draft_ask;

typedef struct sl_drafter {
    const char *name; /* "n-gram", "self", "model"; lives as long as the program */
    /* Fills an empty tree with room for max_nodes; none is an answer too. SL_CANCELLED when stopped. The history only
     * grows between calls, unless `settled` says otherwise. */
    sl_status (*propose)(void *self, const sl_draft_ask *ask, sl_draft_tree *tree, sl_err *err);
    /* The text is history[0..n) and is about to be continued by others (a rewind: history still holds what is
     * forgotten), or has grown. May be NULL. */
    void (*settled)(void *self, const int32_t *history, size_t n);
    void *self;
    uint64_t row_bytes; /* that it goes through for each token; 0: unknown, or next to nothing */
    /* Of a text of n tokens, those that it would read before it proposes. NULL: none. */
    size_t (*unread)(const void *self, size_t n);
} sl_drafter;

#endif
