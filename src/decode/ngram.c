#include "decode/ngram.h"

#include "decode/suffix.h"

enum {
    MOST_PLACES = 64, /* matches that a tree is made of */
    N_LENGTHS = 8,    /* classes of match length: 1, 2, 3, 4.., 6.., 9.., 17.., 33.. tokens */
    SURE = 8,         /* tokens of a match that a copy is known by, */
    MOST_BEHIND = 8,  /* and how far behind the text's end it may be */
    MEMORY = 256,     /* outcomes after which older ones count half */
    NOWHERE = -2      /* a parent that nothing has */
};

/* How often something came true. */
typedef struct outcome {
    float hits, trials;
} outcome;

/* A node of the last proposal, for what came of it. */
typedef struct guess {
    int32_t id, parent;
    uint8_t length_class;
    bool is_first; /* of its siblings */
} guess;

struct sl_ngram {
    sl_budget *budget;
    size_t max_tokens;
    sl_suffix *suffix;
    outcome first[N_LENGTHS]; /* the likeliest continuation, by length of the match */
    outcome other;            /* one of the others, where the likeliest did not */
    size_t asked_at, n_guesses;
    guess guesses[SL_MAX_DRAFTS];
};

uint64_t sl_ngram_bytes(size_t max_tokens)
{
    return sizeof(sl_ngram) + 64 + sl_suffix_bytes(max_tokens);
}

sl_status sl_ngram_create(size_t max_tokens, sl_budget *budget, sl_ngram **out, sl_err *err)
{
    /* To begin with; worth this many outcomes. */
    static const float prior[N_LENGTHS] = {0.15f, 0.3f, 0.45f, 0.6f, 0.75f, 0.85f, 0.92f, 0.96f};
    static const float weight = 8.0f, prior_of_other = 0.3f;
    *out = NULL;
    sl_ngram *ngram = NULL;
    sl_status status = sl_mem_new(budget, 1, sizeof *ngram, "n-gram drafter", &ngram, err);
    if (status != SL_OK)
        return status;
    ngram->budget = budget;
    ngram->max_tokens = max_tokens;
    for (size_t i = 0; i < N_LENGTHS; i++)
        ngram->first[i] = (outcome){weight * prior[i], weight};
    ngram->other = (outcome){weight * prior_of_other, weight};
    status = sl_suffix_create(max_tokens, budget, &ngram->suffix, err);
    if (status != SL_OK) {
        sl_ngram_destroy(ngram);
        return status;
    }
    *out = ngram;
    return SL_OK;
}

void sl_ngram_destroy(sl_ngram *ngram)
{
    if (!ngram)
        return;
    sl_suffix_destroy(ngram->suffix);
    sl_mem_free(ngram->budget, ngram);
}

/* -------------------------------------------------------------------------------------------------- what came true */

static size_t class_of(size_t length)
{
    static const size_t from[N_LENGTHS] = {1, 2, 3, 4, 6, 9, 17, 33};
    size_t i = N_LENGTHS - 1;
    while (i > 0 && length < from[i])
        i--;
    return i;
}

static void note(outcome *o, bool is_hit)
{
    o->hits += is_hit ? 1.0f : 0.0f;
    o->trials += 1.0f;
    if (o->trials > (float)MEMORY) {
        o->hits *= 0.5f;
        o->trials *= 0.5f;
    }
}

/* The children of `parent` against the token that came; the child that it was. */
static int32_t judge(sl_ngram *ngram, int32_t parent, int32_t id)
{
    int32_t child = NOWHERE;
    size_t n_others = 0;
    bool was_first = false;
    for (size_t i = 0; i < ngram->n_guesses; i++) {
        const guess *g = &ngram->guesses[i];
        if (g->parent != parent)
            continue;
        if (g->id == id)
            child = (int32_t)i;
        if (g->is_first)
            note(&ngram->first[g->length_class], was_first = g->id == id);
        else
            n_others++;
    }
    if (n_others > 0 && !was_first)
        note(&ngram->other, child != NOWHERE);
    return child;
}

/* The text is history[0..n) now. */
static void settled(void *self, const int32_t *history, size_t n)
{
    sl_ngram *ngram = self;
    int32_t at = SL_DRAFT_ROOT;
    for (size_t i = ngram->asked_at; ngram->n_guesses > 0 && i < n && at != NOWHERE; i++)
        at = judge(ngram, at, history[i]);
    if (n != ngram->asked_at)
        ngram->n_guesses = 0;
    sl_suffix_cut(ngram->suffix, n);
    if (n <= ngram->max_tokens)
        sl_suffix_extend(ngram->suffix, history, n);
}

/* ---------------------------------------------------------------------------------------------------- a proposal */

/* A continuation that could become a node, and the matches that have it: places[from..to). */
typedef struct branch {
    int32_t id, parent;
    size_t depth, from, to;
    float p, path_p; /* of it after its parent; of the whole path */
    uint8_t length_class;
    bool is_first;
} branch;

typedef struct proposal {
    sl_ngram *ngram;
    const sl_draft_ask *ask;
    sl_draft_tree *tree;
    sl_suffix_match places[MOST_PLACES];
    size_t best_end, best_length;
    branch branches[MOST_PLACES]; /* no more than places: each has one of its own at least */
    size_t n_branches;
} proposal;

/* What follows a place as many tokens on as `depth`; behind the text's end that is the path to `parent`, whose depth is
 * one less. */
static int32_t token_after(const proposal *p, const sl_suffix_match *place, size_t depth, int32_t parent)
{
    const size_t at = place->end + 1 + depth;
    if (at < p->ask->n)
        return p->ask->history[at];
    int32_t node = parent;
    for (size_t up = depth - 1 - (at - p->ask->n); up > 0; up--)
        node = p->tree->nodes[node].parent;
    return p->tree->nodes[node].id;
}

/* Half for each token that it is shorter than the longest; of the longest the latest counts twice. */
static float weight_of(const proposal *p, const sl_suffix_match *place)
{
    enum { MOST_HALVINGS = 20 };
    const size_t less = p->best_length - place->length;
    const float weight = 1.0f / (float)(1u << (less < MOST_HALVINGS ? less : MOST_HALVINGS));
    return place->end == p->best_end ? 2.0f * weight : weight;
}

/* Puts the places of [from, to) that go on as the first of them does in front; returns where they end. */
static size_t gather(proposal *p, size_t from, size_t to, size_t depth, int32_t parent)
{
    const int32_t id = token_after(p, &p->places[from], depth, parent);
    size_t end = from + 1;
    for (size_t i = end; i < to; i++) {
        const sl_suffix_match place = p->places[i];
        if (token_after(p, &place, depth, parent) != id)
            continue;
        p->places[i] = p->places[end];
        p->places[end++] = place;
    }
    return end;
}

/* The continuations of places [from, to) after `parent`. The heaviest is the likeliest; what it leaves is shared by the
 * others as they weigh. */
static void branch_out(proposal *p, size_t from, size_t to, int32_t parent, float path_p)
{
    const size_t first_branch = p->n_branches;
    size_t depth = 0, heaviest = first_branch;
    for (int32_t up = parent; up != SL_DRAFT_ROOT; up = p->tree->nodes[up].parent)
        depth++;
    for (size_t at = from, end; at < to; at = end) {
        end = gather(p, at, to, depth, parent);
        branch *b = &p->branches[p->n_branches++];
        *b = (branch){.id = token_after(p, &p->places[at], depth, parent), .parent = parent, .depth = depth,
                      .from = at, .to = end};
        size_t longest = 0;
        for (size_t i = at; i < end; i++) {
            b->p += weight_of(p, &p->places[i]);
            longest = p->places[i].length > longest ? p->places[i].length : longest;
        }
        b->length_class = (uint8_t)class_of(longest + depth);
        heaviest = b->p > p->branches[heaviest].p ? p->n_branches - 1 : heaviest;
    }
    branch *likeliest = &p->branches[heaviest];
    const outcome *first = &p->ngram->first[likeliest->length_class], *other = &p->ngram->other;
    const float likely = first->hits / first->trials;
    const float left = (1.0f - likely) * other->hits / other->trials;
    float others = 0.0f; /* not what all less the likeliest would leave: that may round to nothing */
    for (size_t i = first_branch; i < p->n_branches; i++)
        others += i == heaviest ? 0.0f : p->branches[i].p;
    for (size_t i = first_branch; i < p->n_branches; i++) {
        branch *b = &p->branches[i];
        b->is_first = i == heaviest;
        b->p = b->is_first ? likely : left * b->p / others;
        b->path_p = path_p * b->p;
    }
}

/* The likeliest continuation of all becomes a node, and its continuations are looked at next. */
static void add_likeliest(proposal *p)
{
    size_t best = 0;
    for (size_t i = 1; i < p->n_branches; i++)
        if (p->branches[i].path_p > p->branches[best].path_p)
            best = i;
    const branch b = p->branches[best];
    p->branches[best] = p->branches[--p->n_branches];
    const size_t node = p->tree->n;
    sl_draft_tree_add(p->tree, b.id, b.parent, b.p);
    p->ngram->guesses[node] = (guess){b.id, b.parent, b.length_class, b.is_first};
    if (b.depth + 1 < p->ask->max_depth)
        branch_out(p, b.from, b.to, (int32_t)node, b.path_p);
}

/* The place that a copy with changes has reached. */
static bool find_copy(const proposal *p, sl_suffix_match *out)
{
    const int32_t *text = p->ask->history;
    const size_t n = p->ask->n;
    for (size_t behind = 1; behind <= MOST_BEHIND && behind + SURE <= n; behind++) {
        sl_suffix_match match;
        if (!sl_suffix_find(p->ngram->suffix, n - 1 - behind, &match) || match.length < SURE ||
            match.end + behind >= n - 1)
            continue;
        size_t n_other = 0;
        for (size_t i = 1; i <= behind; i++)
            n_other += text[match.end + i] != text[n - 1 - behind + i];
        *out = (sl_suffix_match){match.end + behind, 2 * n_other < SURE ? SURE - 2 * n_other : 0};
        return out->length > 0;
    }
    return false;
}

/* The best place first, others behind it; returns how many. */
static size_t find_places(proposal *p)
{
    const sl_suffix *suffix = p->ngram->suffix;
    sl_suffix_match best = {0, 0}, copy = {0, 0};
    const bool has_match = sl_suffix_find(suffix, p->ask->n - 1, &best);
    const bool has_copy = best.length < SURE && find_copy(p, &copy);
    if (!has_match && !has_copy)
        return 0;
    const bool is_copy_best = has_copy && copy.length > best.length;
    p->places[0] = is_copy_best ? copy : best;
    size_t n = 1;
    if (p->ask->may_branch && has_copy && !is_copy_best)
        p->places[n++] = copy;
    if (p->ask->may_branch)
        n += sl_suffix_near(suffix, p->places + n, MOST_PLACES - n);
    for (size_t i = 1; i < n; i++) /* each once */
        if (p->places[i].end == p->places[0].end || (has_copy && i > 1 && p->places[i].end == copy.end))
            p->places[i--] = p->places[--n];
    p->best_end = p->places[0].end;
    p->best_length = p->places[0].length;
    return n;
}

static sl_status propose(void *self, const sl_draft_ask *ask, sl_draft_tree *tree, sl_err *err)
{
    (void)err;
    sl_ngram *ngram = self;
    if (ask->n > ngram->max_tokens)
        return SL_OK;
    settled(ngram, ask->history, ask->n);
    ngram->asked_at = ask->n;
    ngram->n_guesses = 0;
    proposal p = {.ngram = ngram, .ask = ask, .tree = tree};
    const size_t n_places = ask->n > 0 && ask->max_depth > 0 ? find_places(&p) : 0;
    if (n_places == 0)
        return SL_OK;
    branch_out(&p, 0, n_places, SL_DRAFT_ROOT, 1.0f);
    const size_t most = ask->max_nodes < tree->cap ? ask->max_nodes : tree->cap;
    while (tree->n < most && tree->n < SL_MAX_DRAFTS && p.n_branches > 0)
        add_likeliest(&p);
    ngram->n_guesses = tree->n;
    return SL_OK;
}

sl_drafter sl_ngram_drafter(sl_ngram *ngram)
{
    return (sl_drafter){.name = "n-gram", .propose = propose, .settled = settled, .self = ngram};
}
