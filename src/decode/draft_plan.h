/* How many rows a burst shall have and who is asked for drafts: from costs and successes of this run.
 *
 * Known are: the seconds of a pass by its rows, at a few row counts, with lines between them; the seconds of a draft,
 * for each drafter; those of drawing and accepting a token; how often a draft came true, by drafter and depth, and by
 * the drafter's own estimate. Of all numbers of rows the one with the most expected tokens a second is taken. What is
 * not known yet is thought well of, but tried in small steps: a pass has at most four times the rows of the largest one
 * so far; a drafter whose work, by its size, is far more than it could save is not asked, and one that turned out so
 * hardly ever again. Old measurements are forgotten, and so made again; all of them when passes take another time than
 * they did.
 *
 * Pure: seconds are arguments, so a test's clock does as well. The choice depends on time; what is drawn never does.
 * Owns: nothing but itself. Thread rule: one thread at a time. */
#ifndef SL_DRAFT_PLAN_H
#define SL_DRAFT_PLAN_H

#include "decode/draft_counts.h"

enum {
    SL_DRAFT_POINTS = 9, /* passes of 1, 2, 3.., 5.., 9.., 17.., 33.., 65.., 129.. rows */
    SL_DRAFT_BINS = 8    /* of a drafter's own estimates */
};

typedef struct sl_draft_rate {
    float hits, trials;
} sl_draft_rate;

/* What is known of a drafter. */
typedef struct sl_draft_skill {
    sl_draft_rate by_depth[SL_DRAFT_DEPTHS]; /* one of its nodes there came true, its parent having done so */
    sl_draft_rate by_p[SL_DRAFT_BINS];       /* a node of such an estimate did */
    float bad_luck; /* 0: its last proposal began well; else how likely the misses since then were, by its chances */
    double call_s, node_s;    /* of a proposal; of each of its nodes */
    double row_s;             /* of each node or token read first, in the quickest call; 0: unknown */
    size_t n_asked, asked_at; /* times; the burst of the last one */
} sl_draft_skill;

typedef struct sl_draft_point {
    double rows, seconds; /* means of late; rows = 0: unknown */
    size_t at;            /* the burst of the last one */
} sl_draft_point;

typedef struct sl_draft_plan {
    sl_draft_skill skills[SL_MAX_DRAFTERS];
    sl_draft_point points[SL_DRAFT_POINTS];
    double token_s;         /* drawing and accepting a token */
    size_t n_bursts, n_odd; /* passes in a row whose seconds were unlike what was known of their row count */
} sl_draft_plan;

/* What was measured. A plan starts as zeros. */
typedef struct sl_draft_call {
    size_t n_nodes, n_unread; /* proposed; tokens that were read first */
    double seconds;
} sl_draft_call;
void sl_draft_plan_drafted(sl_draft_plan *plan, size_t drafter, sl_draft_call call);
void sl_draft_plan_passed(sl_draft_plan *plan, size_t n_rows, double seconds); /* once a burst */
void sl_draft_plan_drawn(sl_draft_plan *plan, size_t n_tokens, double seconds);
/* A node whose parent came true, with the drafter's estimate p; whether any of the drafter's nodes at a depth did,
 * which by their chances together was so likely. */
void sl_draft_plan_judge_node(sl_draft_plan *plan, size_t drafter, float p, bool is_hit);
void sl_draft_plan_judge_depth(sl_draft_plan *plan, size_t drafter, size_t depth, float chance, bool is_hit);

/* That a node comes true if its parent does. p: the drafter's estimate, 0: none. */
float sl_draft_plan_chance(const sl_draft_plan *plan, size_t drafter, size_t depth, float p);
/* Seconds of a pass of so many rows; 0: nothing is known. */
double sl_draft_plan_pass_s(const sl_draft_plan *plan, size_t n_rows);
/* The most rows that a pass may have now. */
size_t sl_draft_plan_most_rows(const sl_draft_plan *plan);
/* Tokens a second of a burst that is expected to yield `tokens`. */
double sl_draft_plan_value(const sl_draft_plan *plan, double tokens, size_t n_rows, double draft_s);

/* What a drafter shall be asked for. */
typedef struct sl_draft_terms {
    size_t max_nodes; /* of the burst */
    bool is_fixed;    /* not fewer either, as far as there are drafts */
    size_t n_nodes;   /* that are proposed already */
    double value;     /* of those */
    double draft_s;   /* and the seconds that this took */
    double row_work;  /* of a row of the drafter's, in rows of a pass; 0: unknown */
    size_t n_unread;  /* tokens that it would read first */
    size_t n_left;    /* that the text may still get: no more passes can be saved */
} sl_draft_terms;
/* Nodes; 0: not at all. */
size_t sl_draft_plan_wish(const sl_draft_plan *plan, size_t drafter, const sl_draft_terms *terms);

#endif
