#include "common/progress.h"

#include <inttypes.h>
#include <math.h>

#include "common/text.h"

enum { BAR_CELLS = 24, SHORT_BAR_CELLS = 10 }; /* short where more is to be said */

/* A line longer than the terminal is wide is cut, not wrapped: the next one is drawn over it. DEC private mode 7
 * (https://vt100.net/docs/vt510-rm/DECAWM.html). */
static const char WRAP_OFF[] = "\033[?7l", WRAP_ON[] = "\033[?7h";

static const double TERMINAL_INTERVAL_S = 0.1;
static const double PLAIN_INTERVAL_S = 10.0;
static const double PLAIN_FIRST_S = 3.0; /* a sign of life */
static const double EARLY_S = 3.0; /* before it, starting up weighs too much */

void sl_progress_init(sl_progress *progress, FILE *file, bool is_terminal)
{
    *progress = (sl_progress){.file = file, .is_terminal = is_terminal};
}

static void draw_bar(FILE *file, const sl_progress_state *state, int cells)
{
    int filled = (int)((double)state->done / (double)state->total * cells);
    fputc('[', file);
    for (int i = 0; i < cells; i++)
        fputc(i < filled ? '#' : '.', file);
    fprintf(file, "] %3.0f%% ", floor((double)state->done / (double)state->total * 100));
}

/* Seconds that are left. Attention makes each token dearer than the one before, so the mean rate promises too
 * much: time = a * work + b * work^2 is laid through an early point and this one. */
static double estimate_left_s(const sl_progress *progress, double done, double left, double elapsed_s)
{
    double cost = elapsed_s / done;
    double growth = 0;
    double early_done = (double)progress->early_done;
    if (early_done > 0 && done > early_done)
        growth = fmax(0, (cost - progress->early_s / early_done) / (done - early_done));
    return (cost - growth * done) * left + growth * left * (left + 2 * done);
}

static void draw(sl_progress *progress, const sl_progress_state *state, double now_s)
{
    FILE *file = progress->file;
    double elapsed_s = now_s - progress->started_s;
    double done = (double)(state->done - progress->started_done);
    double rate = done / elapsed_s;
    char time[SL_TEXT_NUMBER_BYTES];

    if (progress->is_terminal)
        fprintf(file, "\r\033[K%s", progress->note ? WRAP_OFF : "");
    fprintf(file, "%s ", state->label);
    if (progress->is_terminal && state->total > 0)
        draw_bar(file, state, progress->note ? SHORT_BAR_CELLS : BAR_CELLS);
    fprintf(file, "%" PRIu64, state->done);
    if (state->total > 0)
        fprintf(file, "/%" PRIu64, state->total);
    fprintf(file, " %s", state->unit);
    if (elapsed_s > 0 && rate > 0) {
        fprintf(file, ", %.*f/s", rate < 10 ? 2 : 0, rate);
        if (state->total > state->done)
            fprintf(file, ", %s left",
                    sl_text_format_time(
                        estimate_left_s(progress, done, (double)(state->total - state->done), elapsed_s), time));
        else
            fprintf(file, ", took %s", sl_text_format_time(elapsed_s, time));
    }
    if (progress->note)
        fprintf(file, "; %s%s", progress->note, progress->is_terminal ? WRAP_ON : "");
    if (!progress->is_terminal)
        fputc('\n', file);
    fflush(file);
    progress->line_open = progress->is_terminal;
    progress->drawn_s = now_s;
    progress->drawn_done = state->done;
}

void sl_progress_update(sl_progress *progress, const sl_progress_state *given, double now_s)
{
    if (!progress->file)
        return;
    sl_progress_state state = *given;
    if (state.total > 0 && state.done > state.total)
        state.done = state.total;
    bool is_new = progress->label != state.label || state.done < progress->started_done;
    if (is_new) {
        progress->label = state.label;
        progress->started_s = now_s;
        progress->started_done = state.done;
        progress->drawn_s = now_s;
        progress->drawn_done = UINT64_MAX;
        progress->early_done = 0;
    }
    if (progress->early_done == 0 && now_s - progress->started_s >= EARLY_S) {
        progress->early_s = now_s - progress->started_s;
        progress->early_done = state.done - progress->started_done;
    }
    bool has_drawn = progress->drawn_done != UINT64_MAX;
    double interval_s = progress->is_terminal ? TERMINAL_INTERVAL_S : has_drawn ? PLAIN_INTERVAL_S : PLAIN_FIRST_S;
    /* Elsewhere than on a terminal a phase too short for its first line needs no last one either. */
    bool is_end = state.total > 0 && state.done == state.total && progress->drawn_done != state.done &&
                  (progress->is_terminal || progress->drawn_done != UINT64_MAX);
    bool is_first = is_new && progress->is_terminal;
    if (is_end || is_first || now_s - progress->drawn_s >= interval_s)
        draw(progress, &state, now_s);
}

void sl_progress_clear(sl_progress *progress)
{
    if (!progress->file || !progress->line_open)
        return;
    fputs("\r\033[K", progress->file);
    fflush(progress->file);
    progress->line_open = false;
}
