#include "decode/stops.h"

#include <string.h>

#include "tok/tok.h"

typedef struct stop {
    const char *text;
    size_t size;
    size_t agreed;   /* bytes of the beginning that the text ends with */
    uint16_t *back;  /* [size] after i + 1 bytes that agreed and one that did not: how many agree all the same */
} stop;

struct sl_stops {
    sl_budget *budget;
    size_t n;
    stop *all;       /* [n] */
    uint16_t *backs; /* of all of them, one behind the other */
};

uint64_t sl_stops_bytes(void)
{
    return SL_STOPS_BYTES * sizeof(uint16_t) + SL_STOPS_MAX * sizeof(stop) + 4096;
}

static sl_status check(const char *const *texts, size_t n, size_t *n_bytes, sl_err *err)
{
    *n_bytes = 0;
    if (n > SL_STOPS_MAX)
        return sl_err_set(err, SL_USAGE, "%zu stop strings, expected at most %d", n, SL_STOPS_MAX);
    for (size_t i = 0; i < n; i++) {
        const size_t size = strlen(texts[i]), right = sl_utf8_check(texts[i], size);
        if (size == 0)
            return sl_err_set(err, SL_USAGE, "stop string %zu is empty", i + 1);
        if (right < size)
            return sl_err_set(err, SL_USAGE, "stop string %zu is not UTF-8 at byte %zu", i + 1, right);
        *n_bytes += size;
    }
    if (*n_bytes > SL_STOPS_BYTES)
        return sl_err_set(err, SL_USAGE, "stop strings have %zu bytes, expected at most %d in all", *n_bytes,
                          SL_STOPS_BYTES);
    return SL_OK;
}

sl_status sl_stops_check(const char *const *texts, size_t n, sl_err *err)
{
    size_t n_bytes = 0;
    return check(texts, n, &n_bytes, err);
}

/* How many bytes agree when the next one is `byte`. */
static size_t advance(const stop *s, size_t agreed, char byte)
{
    while (agreed > 0 && (agreed == s->size || s->text[agreed] != byte))
        agreed = s->back[agreed - 1];
    return s->text[agreed] == byte ? agreed + 1 : 0;
}

static void prepare(stop *s, const char *text, uint16_t *back)
{
    *s = (stop){text, strlen(text), 0, back};
    back[0] = 0;
    for (size_t i = 1; i < s->size; i++)
        back[i] = (uint16_t)advance(s, back[i - 1], text[i]);
}

sl_status sl_stops_create(const char *const *texts, size_t n, sl_budget *budget, sl_stops **out, sl_err *err)
{
    *out = NULL;
    sl_stops *s = NULL;
    size_t n_bytes = 0;
    sl_status status = check(texts, n, &n_bytes, err);
    if (status == SL_OK)
        status = sl_mem_new(budget, 1, sizeof *s, "stop strings", &s, err);
    if (status != SL_OK)
        return status;
    *s = (sl_stops){.budget = budget, .n = n};
    status = sl_mem_new(budget, n, sizeof *s->all, "stop strings", &s->all, err);
    if (status == SL_OK)
        status = sl_mem_new(budget, n_bytes, sizeof *s->backs, "stop strings", &s->backs, err);
    if (status != SL_OK) {
        sl_stops_destroy(s);
        return status;
    }
    uint16_t *back = s->backs;
    for (size_t i = 0; i < n; i++) {
        prepare(&s->all[i], texts[i], back);
        back += s->all[i].size;
    }
    *out = s;
    return SL_OK;
}

void sl_stops_destroy(sl_stops *s)
{
    if (!s)
        return;
    sl_mem_free(s->budget, s->all);
    sl_mem_free(s->budget, s->backs);
    sl_mem_free(s->budget, s);
}

size_t sl_stops_take(sl_stops *s, char byte)
{
    size_t longest = 0;
    for (size_t i = 0; i < s->n; i++) {
        stop *one = &s->all[i];
        one->agreed = advance(one, one->agreed, byte);
        if (one->agreed == one->size && one->size > longest)
            longest = one->size;
    }
    return longest;
}

size_t sl_stops_held(const sl_stops *s)
{
    size_t held = 0;
    for (size_t i = 0; i < s->n; i++)
        if (s->all[i].agreed > held)
            held = s->all[i].agreed;
    return held;
}
