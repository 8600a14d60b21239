/* Progress of one phase at a time: a bar with rate and remaining time on a terminal, a plain line every ten
 * seconds elsewhere. Owns nothing, starts no thread and reads no clock: the caller passes the time.
 * Thread rule: one thread at a time. */
#ifndef SL_PROGRESS_H
#define SL_PROGRESS_H

#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>

typedef struct sl_progress {
    FILE *file; /* borrowed; NULL: silent */
    bool is_terminal;
    bool line_open; /* a bar stands on the current line */
    const char *note; /* set by the caller: what else is to be said, at the end of the line; borrowed; NULL: nothing */
    const char *label;
    double started_s;
    double drawn_s;
    uint64_t started_done;
    uint64_t drawn_done;
    double early_s;      /* an early point of the phase, for the estimate: seconds and work since its start */
    uint64_t early_done; /* 0: not yet */
} sl_progress;

/* What a drawing says. `label` also tells phases apart (by address): a new one starts a new rate. Both strings
 * are borrowed until the next update. */
typedef struct sl_progress_state {
    const char *label; /* "prefill" */
    const char *unit;  /* "tokens" */
    uint64_t done;
    uint64_t total; /* 0: unknown */
} sl_progress_state;

void sl_progress_init(sl_progress *progress, FILE *file, bool is_terminal);

/* Draws when it is due: ten times a second on a terminal, every ten seconds elsewhere; the end of a phase
 * (done = total) too, unless it comes before the first line. now_s: a monotonic clock in seconds. */
void sl_progress_update(sl_progress *progress, const sl_progress_state *state, double now_s);

/* Removes a standing bar, so that other text can follow on a clean line. Harmless when there is none. */
void sl_progress_clear(sl_progress *progress);

#endif
