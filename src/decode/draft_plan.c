#include "decode/draft_plan.h"

#include <math.h>

enum {
    MEMORY = 24,          /* outcomes that a rate remembers, older ones fading */
    MEMORY_OF_FIRST = 12, /* at the first depth: bursts in a row that come to nothing are to be noticed soon */
    FORGOTTEN = 96,       /* bursts after which a pass's seconds are believed less */
    ASKED_AGAIN = 64,     /* bursts after which a drafter that did not pay gets another chance */
    HARDLY_EVER = 1024,   /* and one that cannot */
    FIRST_ROWS = 8,       /* of the first burst, at most */
    FIRST_ASKED = 3,      /* times that a drafter is asked without looking at what it costs */
    ODD_PASSES = 2,       /* in a row, after which nothing is believed */
    GROWTH = 4            /* a pass has at most so many times the rows of the largest one so far */
};

static const float weight_of_p = 4.0f;      /* outcomes that an estimate is worth */
static const float weight_of_all = 4.0f;    /* outcomes that the mean over all depths is worth, to begin with */
static const float change = 0.02f;          /* odds, before a burst, that the text has become another */
static const double odd_ratio = 1.5;        /* of a pass's seconds to what they were */
static const double new_share = 0.3;        /* of a new measurement in a mean */
static const double least_slope = 0.0003;   /* of a pass of one row: what another row costs at least */
static const double by_far = 8.0;           /* of a guess at what is not measured: so much more is too much */
static const double by_any = 2.0;           /* likewise of what is measured */
static const double read_together = 0.0625; /* of a row's work alone: one of many that are read in one pass, at least */
static const double chance_share = 0.125;   /* of the time since it was asked: what another chance may cost */
static const double worth_asking = 1.02;    /* gain from which a costly drafter is asked */
static const double next_to_nothing = 0.01; /* of a pass: drafters that cost no more are always asked */

static void blend(double *mean, double value)
{
    *mean += (*mean > 0.0 ? new_share : 1.0) * (value - *mean);
}

static void note(sl_draft_rate *rate, int memory, bool is_hit)
{
    rate->hits += is_hit ? 1.0f : 0.0f;
    rate->trials += 1.0f;
    if (rate->trials > (float)memory) {
        rate->hits *= (float)memory / rate->trials;
        rate->trials = (float)memory;
    }
}

/* ------------------------------------------------------------------------------------------------ what was measured */

void sl_draft_plan_drafted(sl_draft_plan *plan, size_t drafter, sl_draft_call call)
{
    sl_draft_skill *skill = &plan->skills[drafter];
    blend(&skill->call_s, call.seconds);
    if (call.n_nodes > 0)
        blend(&skill->node_s, call.seconds / (double)call.n_nodes);
    const double row_s = call.seconds / (double)(call.n_nodes + call.n_unread + 1);
    skill->row_s = skill->n_asked == 0 || row_s < skill->row_s ? row_s : skill->row_s;
    skill->n_asked++;
    skill->asked_at = plan->n_bursts;
}

static size_t point_of(size_t n_rows)
{
    size_t i = 0;
    while (i + 1 < SL_DRAFT_POINTS && ((size_t)1 << i) < n_rows)
        i++;
    return i;
}

static bool is_known(const sl_draft_plan *plan, size_t i)
{
    return plan->points[i].rows > 0.0 && plan->n_bursts - plan->points[i].at < FORGOTTEN;
}

void sl_draft_plan_passed(sl_draft_plan *plan, size_t n_rows, double seconds)
{
    size_t i = point_of(n_rows);
    sl_draft_point *point = &plan->points[i];
    const double ratio = is_known(plan, i) ? seconds / point->seconds : 1.0;
    plan->n_odd = ratio > odd_ratio || ratio * odd_ratio < 1.0 ? plan->n_odd + 1 : 0;
    if (plan->n_odd == ODD_PASSES) /* another machine than it was: what is known of other row counts is nothing */
        for (size_t k = 0; k < SL_DRAFT_POINTS; k++)
            plan->points[k] = (sl_draft_point){0};
    if (!is_known(plan, i))
        *point = (sl_draft_point){0};
    blend(&point->rows, (double)n_rows);
    blend(&point->seconds, seconds > 1e-9 ? seconds : 1e-9);
    point->at = plan->n_bursts++;
}

void sl_draft_plan_drawn(sl_draft_plan *plan, size_t n_tokens, double seconds)
{
    if (n_tokens > 0)
        blend(&plan->token_s, seconds / (double)n_tokens);
}

static size_t bin_of(float p)
{
    static const float from[SL_DRAFT_BINS] = {0.0f, 0.1f, 0.25f, 0.4f, 0.55f, 0.7f, 0.85f, 0.95f};
    size_t i = SL_DRAFT_BINS - 1;
    while (i > 0 && p < from[i])
        i--;
    return i;
}

void sl_draft_plan_judge_node(sl_draft_plan *plan, size_t drafter, float p, bool is_hit)
{
    if (p > 0.0f)
        note(&plan->skills[drafter].by_p[bin_of(p)], MEMORY, is_hit);
}

void sl_draft_plan_judge_depth(sl_draft_plan *plan, size_t drafter, size_t depth, float chance, bool is_hit)
{
    sl_draft_skill *skill = &plan->skills[drafter];
    if (depth == 0)
        skill->bad_luck =
            is_hit ? 0.0f : (skill->bad_luck > 0.0f ? skill->bad_luck : 1.0f) * fmaxf(1.0f - chance, 1e-3f);
    sl_draft_rate *rate = &skill->by_depth[depth < SL_DRAFT_DEPTHS ? depth : SL_DRAFT_DEPTHS - 1];
    note(rate, depth == 0 ? MEMORY_OF_FIRST : MEMORY, is_hit);
}

/* --------------------------------------------------------------------------------------------------- what to expect */

static float chance_of(const sl_draft_skill *skill, size_t depth, float p)
{
    if (p > 0.0f) {
        const sl_draft_rate *rate = &skill->by_p[bin_of(p)];
        return (rate->hits + weight_of_p * fminf(p, 1.0f)) / (rate->trials + weight_of_p);
    }
    sl_draft_rate all = {1.0f, 2.0f}; /* even odds to begin with */
    for (size_t i = 0; i < SL_DRAFT_DEPTHS; i++) {
        all.hits += skill->by_depth[i].hits;
        all.trials += skill->by_depth[i].trials;
    }
    const sl_draft_rate *rate = &skill->by_depth[depth < SL_DRAFT_DEPTHS ? depth : SL_DRAFT_DEPTHS - 1];
    const float weight = fmaxf(0.5f, weight_of_all - 0.5f * rate->trials);
    return (rate->hits + weight * all.hits / all.trials) / (rate->trials + weight);
}

/* Misses in a row are bad luck, or the text has become another: then nothing that was learned holds. */
float sl_draft_plan_chance(const sl_draft_plan *plan, size_t drafter, size_t depth, float p)
{
    const sl_draft_skill *skill = &plan->skills[drafter];
    const float chance = chance_of(skill, depth, p);
    return depth == 0 && skill->bad_luck > 0.0f ? chance * skill->bad_luck / (skill->bad_luck + change) : chance;
}

/* The known points, where rows rise and seconds do not fall: neighbours that would fall are one, their mean. Behind the
 * last, what was known once counts half: so it is tried again where that would pay. */
static size_t rising_points(const sl_draft_plan *plan, sl_draft_point *out)
{
    size_t n = 0, merged[SL_DRAFT_POINTS];
    for (size_t i = 0; i < SL_DRAFT_POINTS; i++) {
        if (!is_known(plan, i))
            continue;
        merged[n] = 1;
        out[n++] = plan->points[i];
        for (; n > 1 && out[n - 1].seconds < out[n - 2].seconds; n--) {
            const double a = (double)merged[n - 2], b = (double)merged[n - 1];
            out[n - 2].seconds = (a * out[n - 2].seconds + b * out[n - 1].seconds) / (a + b);
            out[n - 2].rows = out[n - 1].rows;
            merged[n - 2] += merged[n - 1];
        }
    }
    for (size_t i = 0; i < SL_DRAFT_POINTS && n > 0 && n < SL_DRAFT_POINTS; i++) {
        const sl_draft_point *old = &plan->points[i], *last = &out[n - 1];
        if (!is_known(plan, i) && old->rows > last->rows && old->seconds > last->seconds)
            out[n++] = (sl_draft_point){old->rows, 0.5 * (last->seconds + old->seconds), old->at};
    }
    return n;
}

static double line(const sl_draft_point *a, const sl_draft_point *b, double rows)
{
    if (b->rows <= a->rows)
        return b->seconds;
    return a->seconds + (b->seconds - a->seconds) * (rows - a->rows) / (b->rows - a->rows);
}

/* Below what is known a pass may cost as much less as it has fewer rows: that is found out by one such pass. Above, it
 * goes on as it went between the last two. */
double sl_draft_plan_pass_s(const sl_draft_plan *plan, size_t n_rows)
{
    sl_draft_point points[SL_DRAFT_POINTS];
    size_t n = rising_points(plan, points), i = 0;
    const double rows = (double)n_rows;
    if (n == 0)
        return 0.0;
    double seconds;
    while (i < n && points[i].rows < rows)
        i++;
    size_t first = 0;
    while (!is_known(plan, first))
        first++;
    if (i == 0)
        seconds =
            rows < plan->points[first].rows ? points[0].seconds * rows / plan->points[first].rows : points[0].seconds;
    else if (i < n)
        seconds = line(&points[i - 1], &points[i], rows);
    else
        seconds = n > 1 ? line(&points[n - 2], &points[n - 1], rows) : points[0].seconds;
    return seconds + least_slope * points[0].seconds * rows;
}

size_t sl_draft_plan_most_rows(const sl_draft_plan *plan)
{
    double most = 0.0;
    for (size_t i = 0; i < SL_DRAFT_POINTS; i++)
        if (plan->points[i].rows > most)
            most = plan->points[i].rows;
    const size_t rows = (size_t)(most + 0.5) * GROWTH;
    return rows > FIRST_ROWS ? rows : FIRST_ROWS;
}

double sl_draft_plan_value(const sl_draft_plan *plan, double tokens, size_t n_rows, double draft_s)
{
    double seconds = draft_s + sl_draft_plan_pass_s(plan, n_rows) + plan->token_s * tokens;
    return seconds > 0.0 ? tokens / seconds : tokens;
}

/* --------------------------------------------------------------------------------------------------------- whom to ask
 */

/* The length of chain that is worth most, and its worth; least: not shorter. */
static size_t best_chain(const sl_draft_plan *plan, size_t drafter, const sl_draft_terms *terms, size_t least,
                         double *value)
{
    double tokens = 1.0, path_p = 1.0;
    size_t best = 0;
    *value = 0.0;
    for (size_t n = 1; n <= terms->max_nodes; n++) {
        path_p *= (double)sl_draft_plan_chance(plan, drafter, n - 1, 0.0f);
        tokens += path_p;
        double v = sl_draft_plan_value(plan, tokens, n + 1, terms->draft_s + (double)n * plan->skills[drafter].node_s);
        if (n >= least && v > *value) {
            *value = v;
            best = n;
        }
    }
    return best;
}

/* A node saves a pass at most; what is read first serves all that are left. Before the first call all is in rows of a
 * pass, of which nothing needs to be measured. */
static bool costs_too_much(const sl_draft_skill *skill, const sl_draft_terms *terms, double pass_s)
{
    const double left = (double)terms->n_left, unread = (double)terms->n_unread;
    if (skill->n_asked == 0)
        return terms->row_work > by_far || terms->row_work * read_together * unread > by_far * left;
    return skill->row_s > by_any * pass_s || skill->row_s * unread > by_any * pass_s * left;
}

/* It is long ago that it was asked, for what that costs. */
static bool gets_a_chance(const sl_draft_plan *plan, const sl_draft_skill *skill, size_t n_bursts, double pass_s)
{
    const size_t since = plan->n_bursts - skill->asked_at;
    return since >= n_bursts && skill->call_s <= chance_share * pass_s * (double)since;
}

size_t sl_draft_plan_wish(const sl_draft_plan *plan, size_t drafter, const sl_draft_terms *terms)
{
    const sl_draft_skill *skill = &plan->skills[drafter];
    const double pass_s = sl_draft_plan_pass_s(plan, 1);
    if (terms->max_nodes == 0)
        return 0;
    if (skill->n_asked > 0 && skill->call_s <= next_to_nothing * pass_s)
        return terms->max_nodes;
    if (!terms->is_fixed && costs_too_much(skill, terms, pass_s) &&
        (skill->n_asked == 0 || !gets_a_chance(plan, skill, HARDLY_EVER, pass_s)))
        return 0;
    double value = 0.0;
    size_t n = best_chain(plan, drafter, terms, terms->is_fixed ? terms->max_nodes : 1, &value);
    if (skill->n_asked < FIRST_ASKED && !terms->is_fixed)
        n = n < FIRST_ROWS - 1 ? n : FIRST_ROWS - 1;
    const bool is_new = skill->n_asked < FIRST_ASKED || gets_a_chance(plan, skill, ASKED_AGAIN, pass_s);
    const bool is_wanted = terms->is_fixed && terms->n_nodes < terms->max_nodes;
    return is_new || is_wanted || value > worth_asking * terms->value ? n : 0;
}
