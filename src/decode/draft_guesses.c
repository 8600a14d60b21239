#include "decode/draft_guesses.h"

enum { NONE = -1 };

/* Guesses so unlikely are not looked at where the number of rows is to be chosen. */
static const float hopeless = 0.002f;

void sl_guesses_start(sl_guesses *g, sl_draft_plan *plan, size_t n_vocab)
{
    g->plan = plan;
    g->n_vocab = n_vocab;
    g->n = 0;
    g->first_child = NONE;
}

static int32_t find_child(const sl_guesses *g, int32_t parent, int32_t id)
{
    int32_t child = parent == SL_DRAFT_ROOT ? g->first_child : g->nodes[parent].first_child;
    while (child != NONE && g->nodes[child].id != id)
        child = g->nodes[child].next;
    return child;
}

static int32_t add(sl_guesses *g, size_t drafter, const sl_draft_node *from, int32_t parent)
{
    int32_t at = (int32_t)g->n++;
    sl_guess *node = &g->nodes[at];
    int32_t *first = parent == SL_DRAFT_ROOT ? &g->first_child : &g->nodes[parent].first_child;
    *node = (sl_guess){.id = from->id,
                       .parent = parent,
                       .first_child = NONE,
                       .next = *first,
                       .p = from->p,
                       .depth = parent == SL_DRAFT_ROOT ? 0 : (uint16_t)(g->nodes[parent].depth + 1),
                       .drafter = (uint8_t)drafter};
    *first = at;
    return at;
}

void sl_guesses_bar(sl_guesses *g, int32_t id)
{
    g->barred[g->n_barred++ % SL_MAX_BARRED] = id;
}

static bool is_barred(const sl_guesses *g, int32_t id)
{
    for (size_t i = 0; i < g->n_barred && i < SL_MAX_BARRED; i++)
        if (g->barred[i] == id)
            return true;
    return false;
}

void sl_guesses_join(sl_guesses *g, size_t drafter, const sl_draft_tree *tree)
{
    int32_t place[SL_MAX_DRAFTS];
    for (size_t i = 0; i < tree->n && i < SL_MAX_DRAFTS; i++) {
        const sl_draft_node *node = &tree->nodes[i];
        const bool is_root = node->parent == SL_DRAFT_ROOT;
        place[i] = NONE;
        if (node->id < 0 || (size_t)node->id >= g->n_vocab || (!is_root && (size_t)node->parent >= i))
            continue;
        if ((!is_root && place[node->parent] == NONE) || is_barred(g, node->id))
            continue;
        int32_t parent = is_root ? SL_DRAFT_ROOT : place[node->parent];
        int32_t at = find_child(g, parent, node->id);
        if (at == NONE && g->n == SL_MAX_GUESSES)
            continue;
        if (at == NONE)
            at = add(g, drafter, node, parent);
        place[i] = at;
        sl_guess *guess = &g->nodes[at];
        guess->drafters |= (uint8_t)(1u << drafter);
        float chance = sl_draft_plan_chance(g->plan, drafter, guess->depth, node->p);
        guess->chance = chance > guess->chance ? chance : guess->chance;
    }
}

/* ------------------------------------------------------------------------------------------------------ picking rows
 */

static int32_t *n_children_of(sl_guesses *g, int32_t node)
{
    return &g->n_children[node == SL_DRAFT_ROOT ? SL_MAX_GUESSES : node];
}

/* The likeliest guess that may become a row: its parent is one. */
static int32_t next_pick(sl_guesses *g, const sl_guess_limits *limits, size_t n_branches)
{
    int32_t best = NONE;
    for (size_t i = 0; i < g->n; i++) {
        const sl_guess *node = &g->nodes[i];
        if (node->row != 0 || (best != NONE && node->path_chance <= g->nodes[best].path_chance) ||
            (node->parent != SL_DRAFT_ROOT && g->nodes[node->parent].row == 0))
            continue;
        if (*n_children_of(g, node->parent) > 0 && (!limits->may_branch || n_branches == SL_TREE_MAX_BRANCHES))
            continue;
        best = (int32_t)i;
    }
    return best;
}

static void start_picking(sl_guesses *g)
{
    for (size_t i = 0; i < g->n; i++) {
        sl_guess *node = &g->nodes[i];
        node->row = g->n_children[i] = 0;
        node->path_chance = node->chance * (node->parent == SL_DRAFT_ROOT ? 1.0f : g->nodes[node->parent].path_chance);
    }
    *n_children_of(g, SL_DRAFT_ROOT) = 0;
}

/* Picks in the order of likelihood; returns how many of them are worth most. */
static size_t pick(sl_guesses *g, const sl_guess_limits *limits, double *value)
{
    const size_t most_rows = sl_draft_plan_most_rows(g->plan);
    size_t best = 0, n_branches = 0;
    double tokens = 1.0;
    start_picking(g);
    *value = sl_draft_plan_value(g->plan, tokens, 1, limits->draft_s);
    for (size_t n = 0; n < limits->max_nodes && n < SL_MAX_DRAFTS; n++) {
        if (!limits->is_fixed && n + 1 >= most_rows)
            break;
        int32_t at = next_pick(g, limits, n_branches);
        if (at == NONE || (!limits->is_fixed && g->nodes[at].path_chance < hopeless))
            break;
        g->nodes[at].row = 1;
        g->picked[n] = at;
        n_branches += (*n_children_of(g, g->nodes[at].parent))++ > 0;
        tokens += (double)g->nodes[at].path_chance;
        double v = sl_draft_plan_value(g->plan, tokens, n + 2, limits->draft_s);
        if (v > *value || limits->is_fixed) {
            *value = v;
            best = n + 1;
        }
    }
    return best;
}

/* The next picked child of `parent` behind the pick that has place `after`; its place among the picks. */
static size_t next_child(const sl_guesses *g, size_t n, int32_t parent, size_t from)
{
    while (from < n && g->nodes[g->picked[from]].parent != parent)
        from++;
    return from;
}

/* Depth-first, each node's children in the order they were picked. */
static void order(sl_guesses *g, size_t n, sl_burst_rows *rows)
{
    size_t place[SL_MAX_DRAFTS]; /* of the way down from the root: among the picks */
    size_t depth = 0, from = 0;
    for (;;) {
        const int32_t parent = depth == 0 ? SL_DRAFT_ROOT : g->picked[place[depth - 1]];
        size_t at = next_child(g, n, parent, from);
        if (at < n) {
            sl_guess *node = &g->nodes[g->picked[at]];
            node->row = (int32_t)rows->n;
            rows->ids[rows->n] = node->id;
            rows->parents[rows->n] = parent == SL_DRAFT_ROOT ? 0 : g->nodes[parent].row;
            rows->guesses[rows->n] = g->picked[at];
            rows->is_tree |= rows->parents[rows->n] != (int32_t)rows->n - 1;
            rows->n++;
            place[depth++] = at;
            from = at + 1; /* a child is picked after its parent */
        } else if (depth == 0) {
            return;
        } else {
            from = place[--depth] + 1;
        }
    }
}

double sl_guesses_pick(sl_guesses *g, const sl_guess_limits *limits, int32_t last, sl_burst_rows *rows)
{
    double value = 0.0;
    size_t n = pick(g, limits, &value);
    for (size_t i = 0; i < g->n; i++)
        g->nodes[i].row = 0;
    rows->n = 1;
    rows->is_tree = false;
    rows->ids[0] = last;
    rows->parents[0] = rows->guesses[0] = NONE;
    order(g, n, rows);
    return value;
}

int32_t sl_burst_rows_find(const sl_burst_rows *rows, int32_t row, int32_t id)
{
    for (size_t i = (size_t)row + 1; i < rows->n; i++)
        if (rows->parents[i] == row && rows->ids[i] == id)
            return (int32_t)i;
    return NONE;
}

/* ------------------------------------------------------------------------------------------------------- what came */

static void count(const sl_guess *node, size_t counts[SL_MAX_DRAFTERS][SL_DRAFT_DEPTHS])
{
    const size_t depth = node->depth < SL_DRAFT_DEPTHS ? node->depth : SL_DRAFT_DEPTHS - 1;
    for (size_t d = 0; d < SL_MAX_DRAFTERS; d++)
        counts[d][depth] += node->drafters >> d & 1;
}

/* The children of one node against the token that came; the child that it was. */
static int32_t judge(const sl_guesses *g, int32_t first, size_t depth, int32_t id)
{
    unsigned asked = 0, right = 0;
    float chances[SL_MAX_DRAFTERS] = {0.0f};
    int32_t found = NONE;
    for (int32_t at = first; at != NONE; at = g->nodes[at].next) {
        const sl_guess *node = &g->nodes[at];
        const bool is_hit = node->id == id;
        asked |= node->drafters;
        right |= is_hit ? node->drafters : 0;
        found = is_hit ? at : found;
        for (size_t d = 0; d < SL_MAX_DRAFTERS; d++)
            chances[d] += node->drafters >> d & 1 ? node->chance : 0.0f;
        sl_draft_plan_judge_node(g->plan, node->drafter, node->p, is_hit);
    }
    for (size_t d = 0; d < SL_MAX_DRAFTERS; d++)
        if (asked >> d & 1)
            sl_draft_plan_judge_depth(g->plan, d, depth, chances[d], right >> d & 1);
    return found;
}

void sl_guesses_judge(const sl_guesses *g, const int32_t *ids, size_t n, sl_draft_counts *counts)
{
    for (size_t i = 0; i < g->n; i++)
        if (g->nodes[i].row > 0)
            count(&g->nodes[i], counts->proposed);
    int32_t at = g->first_child;
    for (size_t i = 0; i < n && at != NONE; i++) {
        int32_t hit = judge(g, at, i, ids[i]);
        if (hit == NONE)
            return;
        if (g->nodes[hit].row > 0)
            count(&g->nodes[hit], counts->accepted);
        at = g->nodes[hit].first_child;
    }
}
