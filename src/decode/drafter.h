/* What proposes the tokens that a burst verifies. A drafter changes the speed, never the text. */
#ifndef SL_DRAFTER_H
#define SL_DRAFTER_H

#include <stddef.h>
#include <stdint.h>

typedef struct sl_drafter {
    /* Up to max guesses of what follows history[0..n); returns how many were written to out. history only ever grows
     * between calls of one generate; between two of them a rewind may have cut it. One thread at a time. */
    size_t (*propose)(void *self, const int32_t *history, size_t n, int32_t *out, size_t max);
    void *self;
} sl_drafter;

#endif
