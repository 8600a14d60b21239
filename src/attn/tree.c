#include "attn/tree.h"

#include <assert.h>

bool sl_tree_is_ordered(const int32_t *parents, size_t n_rows)
{
    size_t n_branches = 1;
    for (size_t row = 1; row < n_rows; row++) {
        int32_t of = (int32_t)row - 1;
        n_branches += of != parents[row];
        while (of > parents[row])
            of = parents[of];
        if (of < 0 || of != parents[row])
            return false;
    }
    return n_rows > 0 && n_rows <= SL_TREE_MAX_ROWS && n_branches <= SL_TREE_MAX_BRANCHES + 1;
}

void sl_tree_init(sl_tree *tree, const int32_t *parents, size_t n_rows, uint64_t first_pos)
{
    assert(sl_tree_is_ordered(parents, n_rows));
    *tree = (sl_tree){.n_rows = n_rows, .n_branches = 1, .first_lane = (size_t)(first_pos % SL_TILE)};
    for (size_t row = 1; row < n_rows; row++) {
        int32_t parent = parents[row], last = (int32_t)row - 1;
        tree->depth[row] = (uint16_t)(tree->depth[parent] + 1);
        if (tree->depth[row] > tree->max_depth)
            tree->max_depth = tree->depth[row];
        if (parent != last)
            tree->branches[tree->n_branches++] = (sl_branch){
                .first = (uint16_t)row,
                .from = tree->branch[parent],
                .group = (uint16_t)((tree->first_lane + tree->depth[row]) / SL_TILE),
            };
        tree->branch[row] = (uint16_t)(tree->n_branches - 1);
    }
    for (size_t b = 0; b < tree->n_branches; b++) {
        sl_branch *branch = &tree->branches[b];
        branch->end = (uint16_t)(b + 1 < tree->n_branches ? tree->branches[b + 1].first : n_rows);
        branch->tile = (uint16_t)tree->n_tiles;
        if (b > 0)
            tree->n_tiles += sl_tree_last_group(tree, b) - branch->group + 1;
    }
}

/* A branch of n rows touches at most (n + 62) / 64 + 1 tile groups: one for its first row, one for each 64 behind. */
size_t sl_tree_max_tiles(size_t n_rows)
{
    size_t branches = n_rows > SL_TREE_MAX_BRANCHES + 2 ? SL_TREE_MAX_BRANCHES : n_rows > 2 ? n_rows - 2 : 0;
    return 2 * branches + n_rows / SL_TILE;
}

void sl_tree_owners(const sl_tree *tree, size_t group, uint16_t *owners)
{
    owners[0] = 0;
    for (size_t b = 1; b < tree->n_branches; b++)
        owners[b] = group >= tree->branches[b].group ? (uint16_t)b : owners[tree->branches[b].from];
}
