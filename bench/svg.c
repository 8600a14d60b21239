/* Pictures: lines of measured points over a logarithmic context axis, or over a budget axis that starts at nothing. */
#include <errno.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "base/err.h"
#include "bench/bench.h"

enum {
    WIDTH = 800, PANEL = 420, LEFT = 88, RIGHT = 180, TOP = 48, BOTTOM = 58,
    PLOT_WIDTH = WIDTH - LEFT - RIGHT, PLOT_HEIGHT = PANEL - TOP - BOTTOM, N_COLOURS = 6, MAX_SERIES = 12
};

/* Distinguishable without colour vision too: Okabe and Ito's palette (https://jfly.uni-koeln.de/color/). */
static const char *const colours[N_COLOURS] = {"#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9"};

typedef struct axis {
    double low, high;
    bool is_log;
} axis;

typedef struct panel {
    FILE *file;
    const sl_bench_row *rows;
    size_t n;
    bool by_budget;
    axis x, y;
    int top; /* of the panel in the picture */
} panel;

static double x_of(const sl_bench_row *row, bool by_budget)
{
    return by_budget ? (double)row->ram_bytes / (1 << 20) : (double)row->context_tokens;
}

static bool is_same_series(const sl_bench_row *a, const sl_bench_row *b)
{
    bool prompts = a->prompt_tokens_per_s > 0;
    return strcmp(a->mode, b->mode) == 0 && strcmp(a->kv_type, b->kv_type) == 0 && (prompts || a->rows == b->rows);
}

static double at_x(const panel *p, double x)
{
    double share = p->x.is_log ? log(x / p->x.low) / log(p->x.high / p->x.low)
                               : (x - p->x.low) / (p->x.high - p->x.low);
    return (double)LEFT + share * (double)PLOT_WIDTH;
}

static double at_y(const panel *p, double y)
{
    double share = log(y / p->y.low) / log(p->y.high / p->y.low);
    return p->top + TOP + (1 - share) * (double)PLOT_HEIGHT;
}

static void set_axes(panel *p)
{
    p->x = (axis){INFINITY, 0, !p->by_budget};
    p->y = (axis){INFINITY, 0, true};
    for (size_t i = 0; i < p->n; i++) {
        double x = x_of(&p->rows[i], p->by_budget), y = p->rows[i].verified_rows_per_s;
        p->x.low = fmin(p->x.low, x);
        p->x.high = fmax(p->x.high, x);
        if (y > 0) {
            p->y.low = fmin(p->y.low, y);
            p->y.high = fmax(p->y.high, y);
        }
    }
    if (!(p->y.high > 0))
        p->y = (axis){1, 10, true};
    p->y.low = pow(10, floor(log10(p->y.low)));
    p->y.high = pow(10, floor(log10(p->y.high)) + 1);
    if (p->by_budget) {
        p->x.low = 0;
        p->x.high *= 1.02;
    } else {
        p->x.low /= 1.2;
        p->x.high *= 1.2;
    }
}

static void put_text(const panel *p, double x, double y, const char *anchor, const char *text)
{
    fprintf(p->file, "<text x=\"%.1f\" y=\"%.1f\" text-anchor=\"%s\">%s</text>\n", x, y, anchor, text);
}

static void put_rule(const panel *p, double x1, double y1, double x2, double y2)
{
    fprintf(p->file, "<line x1=\"%.1f\" y1=\"%.1f\" x2=\"%.1f\" y2=\"%.1f\" stroke=\"#d8d8d8\"/>\n", x1, y1, x2, y2);
}

static const double steps[] = {1, 2, 5};

/* The least of 1, 2, 5, 10, 20, ... that is not below x > 0. */
static double round_step(double x)
{
    double power = pow(10, floor(log10(x)));
    for (int i = 0; i < 3; i++)
        if (steps[i] * power >= x)
            return steps[i] * power;
    return 10 * power;
}

static void put_frame(const panel *p)
{
    char text[64];
    double bottom = p->top + TOP + PLOT_HEIGHT, right = LEFT + PLOT_WIDTH;
    for (double y = p->y.low; y <= p->y.high * 1.001; y *= 10)
        for (int i = 0; i < 3 && y * steps[i] <= p->y.high * 1.001; i++) {
            put_rule(p, LEFT, at_y(p, y * steps[i]), right, at_y(p, y * steps[i]));
            snprintf(text, sizeof text, "%g", y * steps[i]);
            put_text(p, LEFT - 8, at_y(p, y * steps[i]) + 4, "end", text);
        }
    if (p->by_budget)
        for (double x = 0; x <= p->x.high; x += round_step(p->x.high / 6)) {
            put_rule(p, at_x(p, x), p->top + TOP, at_x(p, x), bottom);
            snprintf(text, sizeof text, "%.0f", x);
            put_text(p, at_x(p, x), bottom + 18, "middle", text);
        }
    double factor = p->x.high / p->x.low > 64 ? 4 : 2;
    for (double x = 1024; !p->by_budget && x <= p->x.high; x *= factor) {
        if (x < p->x.low)
            continue;
        put_rule(p, at_x(p, x), p->top + TOP, at_x(p, x), bottom);
        snprintf(text, sizeof text, x < 1 << 20 ? "%.0fK" : "%.0fM", x < 1 << 20 ? x / 1024 : x / (1 << 20));
        put_text(p, at_x(p, x), bottom + 18, "middle", text);
    }
    put_text(p, (double)LEFT + (double)PLOT_WIDTH / 2, bottom + 42, "middle",
             p->by_budget ? "memory budget, MiB" : "context, tokens");
    fprintf(p->file,
            "<text x=\"20\" y=\"%d\" text-anchor=\"middle\" transform=\"rotate(-90 20 %d)\">rows a second</text>\n",
            p->top + TOP + PLOT_HEIGHT / 2, p->top + TOP + PLOT_HEIGHT / 2);
    const sl_bench_row *row = &p->rows[0];
    fprintf(p->file,
            "<text x=\"%d\" y=\"%d\" font-weight=\"bold\">Speed against %s: %u layer%s, %u heads on %u KV heads, "
            "head_dim %u, %llu threads</text>\n",
            (int)LEFT, p->top + 28, p->by_budget ? "memory" : "context length", row->shape.n_layers,
            row->shape.n_layers == 1 ? "" : "s", row->shape.n_heads, row->shape.n_kv_heads, row->shape.head_dim,
            (unsigned long long)row->n_threads);
}

/* The points of one series, in the order of x. */
static size_t collect(const panel *p, const sl_bench_row *of, const sl_bench_row **out)
{
    size_t n = 0;
    for (size_t i = 0; i < p->n; i++) {
        const sl_bench_row *row = &p->rows[i];
        if (!is_same_series(row, of) || !(row->verified_rows_per_s > 0))
            continue;
        size_t at = n++;
        for (; at > 0 && x_of(out[at - 1], p->by_budget) > x_of(row, p->by_budget); at--)
            out[at] = out[at - 1];
        out[at] = row;
    }
    return n;
}

static void put_series(const panel *p, const sl_bench_row *of, size_t index, const sl_bench_row **points)
{
    const char *colour = colours[index % N_COLOURS];
    size_t n = collect(p, of, points);
    fprintf(p->file, "<polyline fill=\"none\" stroke=\"%s\" stroke-width=\"2\" points=\"", colour);
    for (size_t i = 0; i < n; i++)
        fprintf(p->file, "%s%.1f,%.1f", i ? " " : "", at_x(p, x_of(points[i], p->by_budget)),
                at_y(p, points[i]->verified_rows_per_s));
    fputs("\"/>\n", p->file);
    for (size_t i = 0; i < n; i++)
        fprintf(p->file, "<circle cx=\"%.1f\" cy=\"%.1f\" r=\"3.5\" fill=\"%s\"><title>%.4g rows/s</title></circle>\n",
                at_x(p, x_of(points[i], p->by_budget)), at_y(p, points[i]->verified_rows_per_s), colour,
                points[i]->verified_rows_per_s);
    char name[64];
    if (of->prompt_tokens_per_s > 0)
        snprintf(name, sizeof name, "%s, %s", of->mode, of->kv_type);
    else
        snprintf(name, sizeof name, "%s, %s, %llu row%s", of->mode, of->kv_type, (unsigned long long)of->rows,
                 of->rows == 1 ? "" : "s");
    double y = p->top + TOP + 14 + 20.0 * (double)index;
    fprintf(p->file, "<circle cx=\"%d\" cy=\"%.1f\" r=\"4\" fill=\"%s\"/>\n", LEFT + PLOT_WIDTH + 14, y - 4, colour);
    put_text(p, LEFT + PLOT_WIDTH + 24, y, "start", name);
}

static void put_panel(panel *p, const sl_bench_row **points)
{
    const sl_bench_row *series[MAX_SERIES];
    size_t n_series = 0;
    set_axes(p);
    put_frame(p);
    for (size_t i = 0; i < p->n; i++) {
        bool is_new = n_series < MAX_SERIES;
        for (size_t s = 0; s < n_series; s++)
            is_new = is_new && !is_same_series(series[s], &p->rows[i]);
        if (is_new)
            series[n_series++] = &p->rows[i];
    }
    for (size_t s = 0; s < n_series; s++)
        put_series(p, series[s], s, points);
}

/* Rows of one context, mode and row count at several budgets make a curve over the budget. */
static bool has_budgets(const sl_bench_row *rows, size_t n)
{
    for (size_t i = 0; i < n; i++)
        for (size_t k = 0; k < i; k++)
            if (is_same_series(&rows[i], &rows[k]) && rows[i].context_tokens == rows[k].context_tokens &&
                rows[i].ram_bytes != rows[k].ram_bytes)
                return true;
    return false;
}

static bool has_contexts(const sl_bench_row *rows, size_t n)
{
    for (size_t i = 1; i < n; i++)
        if (rows[i].context_tokens != rows[0].context_tokens)
            return true;
    return false;
}

sl_status sl_bench_write_svg(const sl_bench_row *rows, size_t n, const char *path, sl_err *err)
{
    const sl_bench_row **points = calloc(n + 1, sizeof *points);
    FILE *file = points ? fopen(path, "w") : NULL;
    if (!file) {
        sl_status status = points ? sl_err_set_errno(err, SL_FAILED, errno, "%s: cannot open it for writing", path)
                                  : sl_err_set(err, SL_FAILED, "out of memory: picture");
        free(points);
        return status;
    }
    bool budgets = has_budgets(rows, n), contexts = has_contexts(rows, n) || !budgets;
    fprintf(file,
            "<?xml version=\"1.0\" encoding=\"UTF-8\"?>\n"
            "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"%d\" height=\"%d\" font-family=\"sans-serif\" "
            "font-size=\"12\" fill=\"#222222\">\n<rect width=\"100%%\" height=\"100%%\" fill=\"#ffffff\"/>\n",
            WIDTH, PANEL * (budgets + contexts));
    panel p = {.file = file, .rows = rows, .n = n};
    if (contexts)
        put_panel(&p, points);
    p.top = contexts ? PANEL : 0;
    p.by_budget = true;
    if (budgets)
        put_panel(&p, points);
    fputs("</svg>\n", file);
    bool failed = ferror(file) != 0;
    failed = fclose(file) != 0 || failed;
    free(points);
    return failed ? sl_err_set_errno(err, SL_FAILED, errno, "%s: cannot write the picture", path) : SL_OK;
}
