/* The shape of a pass's rows: what follows from their parents.
 *
 * Rows go in depth-first order: a row's parent is the row before it, or an ancestor of that one. So they fall into
 * branches: runs of rows, each the child of the one before. Branch 0 starts with row 0; every other one hangs on a row
 * of an earlier branch. A row's depth is its distance from row 0, its position that of row 0 plus its depth.
 *
 * Tiles follow from positions, and two branches have different keys at the same position: so each branch has tiles of
 * its own from the tile group of its first row to that of its last, and those of the branch that it hangs on before.
 *
 * Owns: nothing but itself. Refuses: nothing; other orders are the caller's fault. Thread rule: constant once made. */
#ifndef SL_TREE_H
#define SL_TREE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/tile.h"

enum {
    SL_TREE_MAX_ROWS = 256,
    SL_TREE_MAX_BRANCHES = 16 /* besides branch 0 */
};

typedef struct sl_branch {
    uint16_t first, end; /* rows */
    uint16_t from;       /* the branch that holds the first row's parent */
    uint16_t group;      /* its first tile group, counted from that of row 0 */
    uint16_t tile;       /* the place of its first tile among those of branches 1, 2, ... */
} sl_branch;

typedef struct sl_tree {
    size_t n_rows, n_branches, n_tiles, max_depth;
    size_t first_lane; /* of row 0 in its tile */
    sl_branch branches[SL_TREE_MAX_BRANCHES + 1];
    uint16_t depth[SL_TREE_MAX_ROWS], branch[SL_TREE_MAX_ROWS];
} sl_tree;

/* Whether parents [n_rows] is such an order, and has no more rows and branches than a tree may. */
bool sl_tree_is_ordered(const int32_t *parents, size_t n_rows);

/* parents [n_rows]: of row 0 it is not read; first_pos: of row 0. */
void sl_tree_init(sl_tree *tree, const int32_t *parents, size_t n_rows, uint64_t first_pos);

/* Tile groups that branches 1, 2, ... of so many rows may have, together. */
size_t sl_tree_max_tiles(size_t n_rows);

/* owners[b]: the branch whose tile at `group` is branch b's; 0 also where branch 0 has ended. */
void sl_tree_owners(const sl_tree *tree, size_t group, uint16_t *owners);

/* The last tile group of a branch. */
static inline size_t sl_tree_last_group(const sl_tree *tree, size_t branch)
{
    return (tree->first_lane + tree->depth[tree->branches[branch].end - 1]) / SL_TILE;
}

#endif
