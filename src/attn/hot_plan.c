/* What a head of a layer wants in memory: the first tiles, the recent ones, and of the others those with the largest
 * means. What is there and still wanted stays where it is. */
#include <string.h>

#include "attn/hot_impl.h"

enum {
    FIRST_TILES = 1,  /* every query looks at the first tokens, whatever they say */
    RECENT_SHARE = 4, /* one in so many slots is a recent tile's */
    /* of a tile */
    WANTED = 1,
    THERE = 2
};

/* A tile that is there is worth this much more than one that would have to be copied. */
static const float STAY = 1.25f;
/* Of a tile's worth, what its successor is worth at least: a text that goes along an earlier passage comes there next,
 * and a tile that is wanted only when it is looked at comes two passes late. */
static const float NEXT = 0.5f;

/* Any fixed order that has nothing to do with the text (a mix of integers after splitmix64). */
static float random_key(uint32_t layer, size_t head, size_t tile)
{
    uint64_t x = ((uint64_t)layer << 48 ^ (uint64_t)head << 32 ^ tile) + UINT64_C(0x9E3779B97F4A7C15);
    x = (x ^ x >> 30) * UINT64_C(0xBF58476D1CE4E5B9);
    x = (x ^ x >> 27) * UINT64_C(0x94D049BB133111EB);
    return (float)(x >> 40);
}

/* The k-th largest of n, 1 <= k <= n (Hoare's "Find", Comm. ACM 4, 1961); the keys are moved about. */
static float kth_largest(float *keys, size_t n, size_t k)
{
    ptrdiff_t low = 0, high = (ptrdiff_t)n - 1, at = (ptrdiff_t)k - 1;
    while (low < high) {
        const float pivot = keys[at];
        ptrdiff_t i = low, j = high;
        while (i <= j) {
            while (keys[i] > pivot)
                i++;
            while (keys[j] < pivot)
                j--;
            if (i > j)
                break;
            const float kept = keys[i];
            keys[i++] = keys[j];
            keys[j--] = kept;
        }
        if (j < at)
            low = i;
        if (at < i)
            high = j;
    }
    return keys[at];
}

/* One head's plan in the making. */
typedef struct plan {
    const sl_hot *hot;
    sl_hot_head *head;
    uint8_t *marks;       /* [n_tiles] */
    float *keys, *sorted; /* [n_tiles] scratch */
    uint32_t layer;
    size_t head_idx, n_tiles;
} plan;

static float key_of(const plan *p, size_t tile)
{
    if (p->hot->options.policy == SL_HOT_RANDOM)
        return random_key(p->layer, p->head_idx, tile);
    const float *means = p->head->means;
    const float from_last = tile > 0 ? means[tile - 1] * NEXT : 0.0f;
    return (means[tile] > from_last ? means[tile] : from_last) * (p->marks[tile] & THERE ? STAY : 1.0f);
}

/* Of tiles [first, end) the k with the largest keys; of equal ones the later. */
static void choose(const plan *p, size_t first, size_t end, size_t k)
{
    if (k == 0)
        return;
    for (size_t t = first; t < end; t++)
        p->keys[t] = key_of(p, t);
    memcpy(p->sorted, p->keys + first, (end - first) * sizeof *p->keys);
    const float least = kth_largest(p->sorted, end - first, k);
    size_t n_equal = k;
    for (size_t t = first; t < end; t++)
        n_equal -= p->keys[t] > least;
    for (size_t t = end; t-- > first;) {
        const float key = p->keys[t];
        if (key > least || (key == least && n_equal > 0)) {
            p->marks[t] |= WANTED;
            n_equal -= key == least;
        }
    }
}

static void mark(const plan *p)
{
    const sl_hot *hot = p->hot;
    memset(p->marks, 0, p->n_tiles);
    for (size_t i = 0; i < hot->n_slots; i++)
        if (p->head->tiles[i] >= 0)
            p->marks[p->head->tiles[i]] |= THERE;
    size_t n_first = FIRST_TILES, n_recent = hot->n_slots / RECENT_SHARE;
    if (hot->options.policy == SL_HOT_RECENT)
        n_first = 0;
    if (hot->options.policy == SL_HOT_RECENT || hot->options.policy == SL_HOT_FIRST_AND_RECENT)
        n_recent = hot->n_slots - n_first;
    n_recent = n_recent > 0 ? n_recent : 1;
    /* In a sliding layer nobody sees what lies before. */
    const sl_kv_layer *layer = &hot->options.geom.layers[p->layer];
    const size_t seen_from = (size_t)(sl_geom_first_seen(layer, (uint64_t)p->n_tiles * SL_TILE) / SL_TILE);
    const size_t n_seen = p->n_tiles - seen_from;
    if (n_seen <= hot->n_slots)
        n_recent = n_seen;
    const size_t recent_from = p->n_tiles - n_recent;
    for (size_t t = seen_from; t < p->n_tiles && t < seen_from + n_first; t++)
        p->marks[t] |= WANTED;
    for (size_t t = recent_from; t < p->n_tiles; t++)
        p->marks[t] |= WANTED;
    if (n_seen > hot->n_slots)
        choose(p, seen_from + n_first, recent_from, hot->n_slots - n_first - n_recent);
}

void sl_hot_plan(sl_hot *hot, uint32_t layer, size_t head_idx, size_t worker, const sl_hot_new *fresh)
{
    sl_hot_head *head = sl_hot_head_of(hot, layer, head_idx);
    float *keys = hot->scratch + worker * 2 * hot->max_tiles;
    const plan p = {.hot = hot,
                    .head = head,
                    .marks = hot->marks + worker * hot->max_tiles,
                    .keys = keys,
                    .sorted = keys + hot->max_tiles,
                    .layer = layer,
                    .head_idx = head_idx,
                    .n_tiles = hot->n_tiles[layer]};
    mark(&p);
    const size_t tile_bytes = sl_tile_bytes(hot->options.geom.type, hot->options.geom.layers[layer].head_dim);
    const size_t group_bytes = sl_geom_group_bytes(&hot->options.geom, layer);
    head->n_missing = head->n_wanted = 0;
    size_t slot = 0;
    for (size_t t = 0; t < p.n_tiles; t++) {
        if (!(p.marks[t] & WANTED))
            continue;
        head->n_wanted++;
        if (p.marks[t] & THERE)
            continue;
        while (head->tiles[slot] >= 0 && p.marks[head->tiles[slot]] & WANTED)
            slot++;
        if (fresh->groups && t >= fresh->first_tile) {
            memcpy(head->data + slot * tile_bytes,
                   fresh->groups + (t - fresh->first_tile) * group_bytes + head_idx * tile_bytes, tile_bytes);
            head->tiles[slot] = (int32_t)t;
        } else {
            head->missing[head->n_missing++] = (sl_hot_missing){(int32_t)t, (int32_t)slot};
        }
        slot++;
    }
}
