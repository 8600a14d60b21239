#include "common/text.h"

#include <errno.h>
#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

sl_status sl_text_error(sl_err *err, sl_status status, const char *fmt, ...)
{
    if (err) {
        va_list args;
        va_start(args, fmt);
        err->status = status;
        vsnprintf(err->text, sizeof err->text, fmt, args);
        va_end(args);
        /* Arguments come from the command line: the promise is one line. */
        for (char *at = err->text; *at; at++)
            if ((unsigned char)*at < ' ')
                *at = ' ';
    }
    return status;
}

static sl_status open_text(const char *path, FILE **out, sl_err *err)
{
    struct stat info;
    if (stat(path, &info) != 0)
        return sl_text_error(err, SL_FAILED, "%s: %s", path, strerror(errno));
    if (S_ISDIR(info.st_mode))
        return sl_text_error(err, SL_FAILED, "%s: is a directory, expected a text file, or - for standard input", path);
    *out = fopen(path, "rb");
    if (!*out)
        return sl_text_error(err, SL_FAILED, "%s: %s", path, strerror(errno));
    return SL_OK;
}

static sl_status read_all(FILE *file, const char *name, uint64_t limit_bytes, bool (*stop)(void *arg), char **out,
                          size_t *out_bytes, sl_err *err)
{
    enum { STEP = 1 << 20 }; /* so that an endless input can be stopped */
    size_t capacity = 1 << 16;
    size_t used = 0;
    char *text = malloc(capacity);
    while (text) {
        size_t room = capacity - used - 1;
        used += fread(text + used, 1, room < STEP ? room : STEP, file);
        if (stop && stop(NULL)) {
            free(text);
            return sl_text_error(err, SL_CANCELLED, "interrupted");
        }
        if (used > limit_bytes) {
            free(text);
            return sl_text_error(err, SL_REFUSED, "%s: longer than the limit of %llu bytes", name,
                                 (unsigned long long)limit_bytes);
        }
        if (ferror(file)) {
            int reason = errno;
            free(text);
            return sl_text_error(err, SL_FAILED, "%s: reading failed after %zu bytes: %s", name, used,
                                 strerror(reason));
        }
        if (feof(file)) {
            text[used] = '\0';
            *out = text;
            *out_bytes = used;
            return SL_OK;
        }
        if (used + 1 < capacity)
            continue;
        char *wider = capacity <= SIZE_MAX / 2 ? realloc(text, capacity *= 2) : NULL;
        if (!wider)
            free(text);
        text = wider;
    }
    return sl_text_error(err, SL_FAILED, "%s: no memory for the text after %zu bytes", name, used);
}

sl_status sl_text_read(const char *path, uint64_t limit_bytes, bool (*stop)(void *arg), char **out, size_t *out_bytes,
                       sl_err *err)
{
    if (strcmp(path, "-") == 0)
        return read_all(stdin, "standard input", limit_bytes, stop, out, out_bytes, err);
    FILE *file = NULL;
    sl_status status = open_text(path, &file, err);
    if (status != SL_OK)
        return status;
    status = read_all(file, path, limit_bytes, stop, out, out_bytes, err);
    fclose(file);
    return status;
}

/* Bytes of the character at text[0], 0 when it is not one. Table 3-7 of the Unicode standard. */
static size_t utf8_char_bytes(const unsigned char *text, size_t left)
{
    unsigned char first = text[0];
    if (first < 0x80)
        return 1;
    size_t n = first >= 0xc2 && first <= 0xdf ? 2 : (first & 0xf0) == 0xe0 ? 3 : first >= 0xf0 && first <= 0xf4 ? 4 : 0;
    if (n == 0 || left < n)
        return 0;
    unsigned char low = first == 0xe0 ? 0xa0 : first == 0xf0 ? 0x90 : 0x80;
    unsigned char high = first == 0xed ? 0x9f : first == 0xf4 ? 0x8f : 0xbf;
    if (text[1] < low || text[1] > high)
        return 0;
    for (size_t i = 2; i < n; i++)
        if ((text[i] & 0xc0) != 0x80)
            return 0;
    return n;
}

size_t sl_text_utf8_prefix(const char *text, size_t n_bytes)
{
    const unsigned char *bytes = (const unsigned char *)text;
    size_t at = 0;
    while (at < n_bytes) {
        size_t step = utf8_char_bytes(bytes + at, n_bytes - at);
        if (step == 0)
            break;
        at += step;
    }
    return at;
}

static const char *format_scaled(double value, double base, const char *const units[5], char *out)
{
    size_t unit = 0;
    /* 999.5 would print as "1000": the next unit takes it */
    while (unit < 4 && value >= (base == 1000 ? 999.5 : 1023.5)) {
        value /= base;
        unit++;
    }
    int decimals = unit == 0 || value >= 99.95 ? 0 : value >= 9.995 ? 1 : 2;
    snprintf(out, SL_TEXT_NUMBER_BYTES, "%.*f %s", decimals, value, units[unit]);
    return out;
}

const char *sl_text_format_size(uint64_t bytes, char out[SL_TEXT_NUMBER_BYTES])
{
    static const char *const units[5] = {"B", "KiB", "MiB", "GiB", "TiB"};
    return format_scaled((double)bytes, 1024, units, out);
}

const char *sl_text_format_rate(double bytes_per_s, char out[SL_TEXT_NUMBER_BYTES])
{
    static const char *const units[5] = {"B/s", "kB/s", "MB/s", "GB/s", "TB/s"};
    if (!(bytes_per_s >= 0) || isinf(bytes_per_s)) {
        snprintf(out, SL_TEXT_NUMBER_BYTES, "-");
        return out;
    }
    return format_scaled(bytes_per_s < 1e18 ? bytes_per_s : 1e18, 1000, units, out);
}

const char *sl_text_format_time(double seconds, char out[SL_TEXT_NUMBER_BYTES])
{
    if (!(seconds >= 0) || seconds > 1e9)
        snprintf(out, SL_TEXT_NUMBER_BYTES, "-");
    else if (seconds < 59.95)
        snprintf(out, SL_TEXT_NUMBER_BYTES, "%.*f s", seconds < 9.995 ? 2 : 1, seconds);
    else if (seconds < 3599.5)
        snprintf(out, SL_TEXT_NUMBER_BYTES, "%d m %02d s", (int)(seconds + 0.5) / 60, (int)(seconds + 0.5) % 60);
    else
        snprintf(out, SL_TEXT_NUMBER_BYTES, "%ld h %02ld m", lround(seconds / 60) / 60, lround(seconds / 60) % 60);
    return out;
}
