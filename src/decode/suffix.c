#include "decode/suffix.h"

#include <assert.h>
#include <string.h>

enum {
    BLOCK_ENDS = 256,
    /* Two neighbours that have no more between them become one. A split leaves each half as much, so two neighbours
     * always have more. */
    MERGE_ENDS = BLOCK_ENDS / 2,
    DIRECT_TOKENS = 16 /* compared in the text before the index is asked */
};

/* Some consecutive ends; shared[i]: last tokens that end[i] has in common with the one before it, in whatever block. */
typedef struct ends_block {
    int32_t end[BLOCK_ENDS];
    int32_t shared[BLOCK_ENDS];
} ends_block;

/* Of an end: the number of its block in the order, and its index in it. */
typedef struct end_place {
    size_t rank, index;
} end_place;

struct sl_suffix {
    sl_budget *budget;
    size_t max_tokens, n_tokens, n_blocks, max_blocks;
    ends_block *blocks; /* [max_blocks] */
    int32_t *block_of;  /* [max_tokens] of an end */
    int32_t *rank_of;   /* [max_blocks] of a block */
    /* by rank: */
    int32_t *order;  /* [max_blocks] the block; behind n_blocks those that are free */
    int32_t *count;  /* ends in it */
    int32_t *head;   /* its first end */
    int32_t *least;  /* the least `shared` in it */
    int32_t *latest; /* the greatest end in it */
};

/* Neighbours have more than MERGE_ENDS between them. */
static size_t blocks_for(size_t max_tokens)
{
    return 2 * (max_tokens / (MERGE_ENDS + 1)) + 2;
}

enum { RANK_ARRAYS = 6 };

uint64_t sl_suffix_bytes(size_t max_tokens)
{
    size_t n_blocks = blocks_for(max_tokens);
    return sizeof(sl_suffix) + (uint64_t)n_blocks * (sizeof(ends_block) + RANK_ARRAYS * sizeof(int32_t)) +
           (uint64_t)max_tokens * sizeof(int32_t) + 4 * SL_MEM_ALIGN;
}

sl_status sl_suffix_create(size_t max_tokens, sl_budget *budget, sl_suffix **out, sl_err *err)
{
    static const char what[] = "index of the text";
    *out = NULL;
    if (max_tokens > INT32_MAX)
        return sl_err_set(err, SL_REFUSED, "%s: %zu tokens, expected at most %d", what, max_tokens, INT32_MAX);
    sl_suffix *s = NULL;
    sl_status status = sl_mem_new(budget, 1, sizeof *s, what, &s, err);
    if (status != SL_OK)
        return status;
    s->budget = budget;
    s->max_tokens = max_tokens;
    s->max_blocks = blocks_for(max_tokens);
    status = sl_mem_new(budget, s->max_blocks, sizeof *s->blocks, what, &s->blocks, err);
    if (status == SL_OK)
        status = sl_mem_new(budget, max_tokens, sizeof *s->block_of, what, &s->block_of, err);
    if (status == SL_OK) /* one piece for all that is by rank or block */
        status = sl_mem_new(budget, s->max_blocks, RANK_ARRAYS * sizeof *s->order, what, &s->order, err);
    if (status != SL_OK) {
        sl_suffix_destroy(s);
        return status;
    }
    s->rank_of = s->order + s->max_blocks;
    s->count = s->rank_of + s->max_blocks;
    s->head = s->count + s->max_blocks;
    s->least = s->head + s->max_blocks;
    s->latest = s->least + s->max_blocks;
    for (size_t i = 0; i < s->max_blocks; i++)
        s->order[i] = (int32_t)i;
    *out = s;
    return SL_OK;
}

void sl_suffix_destroy(sl_suffix *s)
{
    if (!s)
        return;
    sl_mem_free(s->budget, s->blocks);
    sl_mem_free(s->budget, s->block_of);
    sl_mem_free(s->budget, s->order);
    sl_mem_free(s->budget, s);
}

size_t sl_suffix_n_tokens(const sl_suffix *s)
{
    return s->n_tokens;
}

/* ---------------------------------------------------------------------------------------------------------- places */

static ends_block *block_at(const sl_suffix *s, size_t rank)
{
    return &s->blocks[s->order[rank]];
}

static size_t index_in(const ends_block *block, size_t n, int32_t end)
{
    size_t i = 0;
    while (i < n && block->end[i] != end)
        i++;
    assert(i < n);
    return i;
}

static end_place place_of(const sl_suffix *s, size_t end)
{
    const size_t rank = (size_t)s->rank_of[s->block_of[end]];
    return (end_place){rank, index_in(block_at(s, rank), (size_t)s->count[rank], (int32_t)end)};
}

static bool is_before(const sl_suffix *s, size_t end, const end_place *place)
{
    const size_t rank = (size_t)s->rank_of[s->block_of[end]];
    if (rank != place->rank)
        return rank < place->rank;
    return index_in(block_at(s, rank), (size_t)s->count[rank], (int32_t)end) < place->index;
}

static bool step_back(const sl_suffix *s, end_place *place)
{
    if (place->index > 0) {
        place->index--;
        return true;
    }
    if (place->rank == 0)
        return false;
    place->rank--;
    place->index = (size_t)s->count[place->rank] - 1;
    return true;
}

static bool step_on(const sl_suffix *s, end_place *place)
{
    if (place->index + 1 < (size_t)s->count[place->rank]) {
        place->index++;
        return true;
    }
    if (place->rank + 1 >= s->n_blocks)
        return false;
    place->rank++;
    place->index = 0;
    return true;
}

static int32_t end_at(const sl_suffix *s, end_place place)
{
    return block_at(s, place.rank)->end[place.index];
}

static int32_t shared_at(const sl_suffix *s, end_place place)
{
    return block_at(s, place.rank)->shared[place.index];
}

static int32_t least_of(const int32_t *values, size_t n, int32_t least)
{
    for (size_t i = 0; i < n; i++)
        least = values[i] < least ? values[i] : least;
    return least;
}

/* Last tokens that two ends have in common: the least of all that neighbours between them share. `before` comes first
 * in the order. */
static int32_t shared_between(const sl_suffix *s, end_place before, end_place after)
{
    const ends_block *first = block_at(s, before.rank), *last = block_at(s, after.rank);
    size_t from = before.index + 1;
    if (before.rank == after.rank)
        return least_of(first->shared + from, after.index + 1 - from, INT32_MAX);
    int32_t least = least_of(first->shared + from, (size_t)s->count[before.rank] - from, INT32_MAX);
    least = least_of(s->least + before.rank + 1, after.rank - before.rank - 1, least);
    return least_of(last->shared, after.index + 1, least);
}

/* ---------------------------------------------------------------------------------------------------------- blocks */

/* What is known of a block besides its ends. */
static void note_block(sl_suffix *s, size_t rank)
{
    const ends_block *block = block_at(s, rank);
    const size_t n = (size_t)s->count[rank];
    int32_t latest = -1;
    for (size_t i = 0; i < n; i++)
        latest = block->end[i] > latest ? block->end[i] : latest;
    s->head[rank] = block->end[0];
    s->latest[rank] = latest;
    s->least[rank] = least_of(block->shared, n, INT32_MAX);
}

static void shift(int32_t *values, size_t from, size_t to, size_t n)
{
    memmove(values + to, values + from, n * sizeof *values);
}

/* The entries by rank, from `from` on, move to `to`. */
static void shift_ranks(sl_suffix *s, size_t from, size_t to)
{
    const size_t n = s->n_blocks - from;
    int32_t *const arrays[] = {s->order, s->count, s->head, s->least, s->latest};
    for (size_t i = 0; i < sizeof arrays / sizeof arrays[0]; i++)
        shift(arrays[i], from, to, n);
}

static void number_ranks(sl_suffix *s, size_t from)
{
    for (size_t rank = from; rank < s->n_blocks; rank++)
        s->rank_of[s->order[rank]] = (int32_t)rank;
}

/* A free block, of no ends, comes to stand at `rank`. */
static void add_block(sl_suffix *s, size_t rank)
{
    assert(s->n_blocks < s->max_blocks);
    const int32_t block = s->order[s->n_blocks];
    shift_ranks(s, rank, rank + 1);
    s->n_blocks++;
    s->order[rank] = block;
    s->count[rank] = 0;
    number_ranks(s, rank);
}

static void remove_block(sl_suffix *s, size_t rank)
{
    const int32_t block = s->order[rank];
    shift_ranks(s, rank + 1, rank);
    s->n_blocks--;
    s->order[s->n_blocks] = block;
    number_ranks(s, rank);
}

/* The ends of `from` from `first` on come behind those of `to`. */
static void move_ends(sl_suffix *s, size_t from, size_t first, size_t to)
{
    ends_block *source = block_at(s, from), *target = block_at(s, to);
    const size_t n = (size_t)s->count[from] - first, at = (size_t)s->count[to];
    memcpy(target->end + at, source->end + first, n * sizeof *target->end);
    memcpy(target->shared + at, source->shared + first, n * sizeof *target->shared);
    for (size_t i = 0; i < n; i++)
        s->block_of[target->end[at + i]] = s->order[to];
    s->count[to] += (int32_t)n;
    s->count[from] -= (int32_t)n;
}

static void split_block(sl_suffix *s, size_t rank)
{
    add_block(s, rank + 1);
    move_ends(s, rank, BLOCK_ENDS / 2, rank + 1);
    note_block(s, rank);
    note_block(s, rank + 1);
}

/* Puts the block at `rank` and the next one together where they are small. */
static void merge_if_small(sl_suffix *s, size_t rank)
{
    if (rank + 1 >= s->n_blocks || s->count[rank] + s->count[rank + 1] > MERGE_ENDS)
        return;
    move_ends(s, rank + 1, 0, rank);
    remove_block(s, rank + 1);
    note_block(s, rank);
}

/* ---------------------------------------------------------------------------------------------------------- growing */

/* A new end: its last token, and the place of the prefix without it. */
typedef struct new_end {
    const int32_t *text;
    size_t end;
    bool has_rest;
    end_place rest;
} new_end;

/* Whether `end` comes before the new one. The prefix of no tokens comes first of all. */
static bool comes_before(const sl_suffix *s, size_t end, const new_end *new_)
{
    const int32_t token = new_->text[end], own = new_->text[new_->end];
    if (token != own)
        return token < own;
    return end == 0 || (new_->has_rest && is_before(s, end - 1, &new_->rest));
}

/* Where it goes: behind all that come before it. */
static end_place find_place(const sl_suffix *s, const new_end *new_)
{
    size_t low = 0, high = s->n_blocks; /* heads in [0, low) come before it, in [high, n) do not */
    while (low < high) {
        const size_t middle = low + (high - low) / 2;
        if (comes_before(s, (size_t)s->head[middle], new_))
            low = middle + 1;
        else
            high = middle;
    }
    if (low == 0)
        return (end_place){0, 0};
    const size_t rank = low - 1;
    const ends_block *block = block_at(s, rank);
    size_t first = 1, last = (size_t)s->count[rank];
    while (first < last) {
        const size_t middle = first + (last - first) / 2;
        if (comes_before(s, (size_t)block->end[middle], new_))
            first = middle + 1;
        else
            last = middle;
    }
    return (end_place){rank, first};
}

/* Last tokens in common with an earlier end. Most ends differ soon, and the text is at hand. */
static int32_t count_shared(const sl_suffix *s, size_t end, const new_end *new_)
{
    int32_t n = 0;
    while (n < DIRECT_TOKENS && (size_t)n <= end && new_->text[end - (size_t)n] == new_->text[new_->end - (size_t)n])
        n++;
    if (n < DIRECT_TOKENS || (size_t)n > end)
        return n;
    const end_place rest = place_of(s, end - 1);
    const bool is_first = rest.rank != new_->rest.rank ? rest.rank < new_->rest.rank : rest.index < new_->rest.index;
    return 1 + (is_first ? shared_between(s, rest, new_->rest) : shared_between(s, new_->rest, rest));
}

/* Makes room at a place: it is in a block that is not full, afterwards. */
static void make_room(sl_suffix *s, end_place *place)
{
    if (s->n_blocks == 0)
        add_block(s, 0);
    if (s->count[place->rank] < BLOCK_ENDS)
        return;
    split_block(s, place->rank);
    const size_t half = (size_t)s->count[place->rank];
    if (place->index > half)
        *place = (end_place){place->rank + 1, place->index - half};
}

static void put_end(sl_suffix *s, end_place place, int32_t end, int32_t shared)
{
    ends_block *block = block_at(s, place.rank);
    const size_t n_behind = (size_t)s->count[place.rank] - place.index;
    shift(block->end, place.index, place.index + 1, n_behind);
    shift(block->shared, place.index, place.index + 1, n_behind);
    block->end[place.index] = end;
    block->shared[place.index] = shared;
    s->count[place.rank]++;
    s->block_of[end] = s->order[place.rank];
}

static void set_shared(sl_suffix *s, end_place place, int32_t shared)
{
    block_at(s, place.rank)->shared[place.index] = shared;
    s->least[place.rank] = least_of(block_at(s, place.rank)->shared, (size_t)s->count[place.rank], INT32_MAX);
}

/* *last: the place of the text's last end, before and after. */
static void add_end(sl_suffix *s, const int32_t *text, end_place *last)
{
    new_end new_ = {text, s->n_tokens, s->n_tokens > 0, *last};
    end_place place = find_place(s, &new_);
    end_place before = place, after = place;
    const bool has_before = step_back(s, &before);
    /* place may be one past its block's last */
    bool has_after = s->n_blocks > 0;
    if (has_after && after.index == (size_t)s->count[after.rank])
        has_after = step_on(s, &after);
    const int32_t shared = has_before ? count_shared(s, (size_t)end_at(s, before), &new_) : 0;
    /* The neighbours share the lesser of what each has in common with the new one. */
    int32_t shared_after = has_after ? shared_at(s, after) : 0;
    if (has_after && (!has_before || shared == shared_after))
        shared_after = count_shared(s, (size_t)end_at(s, after), &new_);
    make_room(s, &place);
    put_end(s, place, (int32_t)new_.end, shared);
    note_block(s, place.rank);
    *last = place;
    if (has_after && step_on(s, &place))
        set_shared(s, place, shared_after);
    s->n_tokens++;
}

void sl_suffix_extend(sl_suffix *s, const int32_t *text, size_t n)
{
    assert(n <= s->max_tokens);
    if (s->n_tokens >= n)
        return;
    end_place last = s->n_tokens > 0 ? place_of(s, s->n_tokens - 1) : (end_place){0, 0};
    while (s->n_tokens < n)
        add_end(s, text, &last);
}

/* ---------------------------------------------------------------------------------------------------------- cutting */

static void take_end(sl_suffix *s, size_t end)
{
    const end_place place = place_of(s, end);
    ends_block *block = block_at(s, place.rank);
    const int32_t shared = block->shared[place.index];
    end_place after = place;
    if (step_on(s, &after) && shared < shared_at(s, after))
        set_shared(s, after, shared);
    const size_t n_behind = (size_t)s->count[place.rank] - place.index - 1;
    shift(block->end, place.index + 1, place.index, n_behind);
    shift(block->shared, place.index + 1, place.index, n_behind);
    s->count[place.rank]--;
    if (s->count[place.rank] == 0) {
        remove_block(s, place.rank);
        if (place.rank > 0)
            merge_if_small(s, place.rank - 1);
        return;
    }
    note_block(s, place.rank);
    merge_if_small(s, place.rank);
    if (place.rank > 0)
        merge_if_small(s, place.rank - 1);
}

void sl_suffix_cut(sl_suffix *s, size_t n)
{
    if (n == 0)
        s->n_blocks = s->n_tokens = 0;
    while (s->n_tokens > n)
        take_end(s, --s->n_tokens);
}

/* ---------------------------------------------------------------------------------------------------------- finding */

/* The latest end of those that share `length` last tokens with each other, going back from a place (which is left out)
 * or on from it. Whole blocks go by what is known of them. */
static int32_t latest_back(const sl_suffix *s, end_place place, int32_t length)
{
    int32_t latest = -1;
    while (shared_at(s, place) >= length && step_back(s, &place)) {
        const bool is_whole = place.index + 1 == (size_t)s->count[place.rank] && s->least[place.rank] >= length;
        const int32_t end = is_whole ? s->latest[place.rank] : end_at(s, place);
        latest = end > latest ? end : latest;
        if (is_whole)
            place.index = 0;
    }
    return latest;
}

static int32_t latest_on(const sl_suffix *s, end_place place, int32_t length)
{
    int32_t latest = -1;
    while (step_on(s, &place) && shared_at(s, place) >= length) {
        const bool is_whole = place.index == 0 && s->least[place.rank] >= length;
        const int32_t end = is_whole ? s->latest[place.rank] : end_at(s, place);
        latest = end > latest ? end : latest;
        if (is_whole)
            place.index = (size_t)s->count[place.rank] - 1;
    }
    return latest;
}

bool sl_suffix_find(const sl_suffix *s, size_t end, sl_suffix_match *out)
{
    if (end >= s->n_tokens)
        return false;
    const end_place own = place_of(s, end);
    end_place after = own;
    const int32_t with_after = step_on(s, &after) ? shared_at(s, after) : 0, with_before = shared_at(s, own);
    const int32_t length = with_before > with_after ? with_before : with_after;
    if (length == 0)
        return false;
    const int32_t back = latest_back(s, own, length), on = latest_on(s, own, length);
    *out = (sl_suffix_match){(size_t)(back > on ? back : on), (size_t)length};
    return true;
}

size_t sl_suffix_near(const sl_suffix *s, sl_suffix_match *out, size_t max)
{
    if (s->n_tokens < 2)
        return 0;
    end_place back = place_of(s, s->n_tokens - 1), on = back;
    int32_t with_back = shared_at(s, back), with_on = step_on(s, &on) ? shared_at(s, on) : 0;
    bool can_go_back = step_back(s, &back);
    size_t n = 0;
    while (n < max && (with_back > 0 || with_on > 0)) {
        const bool is_back = can_go_back && with_back >= with_on;
        end_place *place = is_back ? &back : &on;
        int32_t *with = is_back ? &with_back : &with_on;
        out[n++] = (sl_suffix_match){(size_t)end_at(s, *place), (size_t)*with};
        const int32_t shared = is_back ? shared_at(s, back) : 0;
        const bool goes_on = is_back ? (can_go_back = step_back(s, &back)) : step_on(s, &on);
        const int32_t next = is_back ? shared : goes_on ? shared_at(s, on) : 0;
        *with = !goes_on ? 0 : next < *with ? next : *with;
    }
    return n;
}
