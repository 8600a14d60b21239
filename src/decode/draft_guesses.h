/* The guesses of a burst: proposals of several drafters in one tree, and the rows that are made of it.
 *
 * Owns: nothing but itself. Refuses: ids that do not exist or are barred, with what hangs on them; siblings of the same
 * id are one.
 * Thread rule: one thread at a time. */
#ifndef SL_DRAFT_GUESSES_H
#define SL_DRAFT_GUESSES_H

#include "attn/tree.h"
#include "decode/draft_plan.h"

enum {
    SL_MAX_GUESSES = 3 * SL_MAX_DRAFTS,
    SL_MAX_BARRED = 16 /* the last ones */
};

typedef struct sl_guess {
    int32_t id, parent;           /* SL_DRAFT_ROOT: follows the text's last token */
    int32_t first_child, next;    /* of its siblings; -1: none */
    int32_t row;                  /* 0: not one of the pass's rows */
    float p, chance, path_chance; /* by its first drafter; as it turned out so far; of all the way from the root */
    uint16_t depth;
    uint8_t drafter;  /* the first that proposed it */
    uint8_t drafters; /* all, a bit each */
} sl_guess;

/* What goes into a pass: row 0 is the text's last token, the others are guesses, depth-first, likelier ones first. */
typedef struct sl_burst_rows {
    size_t n;
    bool is_tree;
    int32_t ids[SL_TREE_MAX_ROWS], parents[SL_TREE_MAX_ROWS];
    int32_t guesses[SL_TREE_MAX_ROWS]; /* row 0: -1 */
} sl_burst_rows;

typedef struct sl_guesses {
    sl_draft_plan *plan; /* borrowed */
    size_t n_vocab, n;
    int32_t first_child; /* of the root */
    sl_guess nodes[SL_MAX_GUESSES];
    sl_draft_node proposed[SL_MAX_DRAFTS]; /* room for a drafter's answer */
    int32_t barred[SL_MAX_BARRED];
    size_t n_barred; /* all that ever were */
    /* While rows are picked: */
    int32_t picked[SL_MAX_DRAFTS], n_children[SL_MAX_GUESSES + 1];
} sl_guesses;

void sl_guesses_start(sl_guesses *guesses, sl_draft_plan *plan, size_t n_vocab);

/* From the next burst on the id is no guess: the model broke down over it. Such a pass is made twice, and a drafter
 * would propose the same again and again. */
void sl_guesses_bar(sl_guesses *guesses, int32_t id);

/* A drafter's answer joins what is there. */
void sl_guesses_join(sl_guesses *guesses, size_t drafter, const sl_draft_tree *tree);

typedef struct sl_guess_limits {
    size_t max_nodes;
    bool is_fixed;   /* as many as there are; false: as many as pay */
    bool may_branch; /* false: a chain */
    double draft_s;  /* seconds that drafting took */
} sl_guess_limits;

/* The rows that are worth most; returns their worth, tokens a second. last: the text's last token. */
double sl_guesses_pick(sl_guesses *guesses, const sl_guess_limits *limits, int32_t last, sl_burst_rows *rows);

/* The row that `id` after `row` is in; -1: none. */
int32_t sl_burst_rows_find(const sl_burst_rows *rows, int32_t row, int32_t id);

/* What came: tells the plan, whether the guesses were rows or not, and counts those that were. */
void sl_guesses_judge(const sl_guesses *guesses, const int32_t *ids, size_t n, sl_draft_counts *counts);

#endif
