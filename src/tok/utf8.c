/* UTF-8: checking a text, and turning a stream of bytes into whole characters.
 * Owns nothing. Source: RFC 3629 section 4 (the syntax of UTF-8 byte sequences); the Unicode Standard, section 3.9,
 * "U+FFFD Substitution of Maximal Subparts". */
#include "tok/tok.h"

#include <string.h>

static const char replacement[] = "\xef\xbf\xbd"; /* U+FFFD */

/* Length of the character that starts with `lead`; 0: no character does. */
static size_t char_size(uint8_t lead)
{
    if (lead < 0x80)
        return 1;
    if (lead < 0xc2) /* a trailing byte, or an overlong form */
        return 0;
    if (lead < 0xe0)
        return 2;
    if (lead < 0xf0)
        return 3;
    return lead < 0xf5 ? 4 : 0;
}

/* May `byte` stand at position i >= 1 of a character that starts with `lead`? Position 1 carries the limits against
 * overlong forms, surrogates and code points above U+10FFFF. */
static bool is_trailing(uint8_t lead, size_t i, uint8_t byte)
{
    uint8_t low = 0x80, high = 0xbf;
    if (i == 1) {
        if (lead == 0xe0)
            low = 0xa0;
        else if (lead == 0xed)
            high = 0x9f;
        else if (lead == 0xf0)
            low = 0x90;
        else if (lead == 0xf4)
            high = 0x8f;
    }
    return byte >= low && byte <= high;
}

/* Bytes at the start of data[0..size) that belong to one character, right so far: equal to *whole when complete. */
static size_t char_prefix(const uint8_t *data, size_t size, size_t *whole)
{
    *whole = char_size(data[0]);
    size_t n = 1;
    while (n < *whole && n < size && is_trailing(data[0], n, data[n]))
        n++;
    return n;
}

size_t sl_utf8_check(const char *text, size_t size)
{
    const uint8_t *data = (const uint8_t *)text;
    size_t at = 0;
    while (at < size) {
        uint64_t eight;
        if (size - at >= sizeof eight) {
            memcpy(&eight, data + at, sizeof eight);
            if ((eight & UINT64_C(0x8080808080808080)) == 0) {
                at += sizeof eight;
                continue;
            }
        }
        size_t whole;
        size_t n = char_prefix(data + at, size - at, &whole);
        if (n != whole)
            return at;
        at += n;
    }
    return size;
}

void sl_utf8_stream_feed(sl_utf8_stream *stream, const char *data, size_t size,
                         void (*emit)(void *arg, const char *text, size_t size), void *arg)
{
    size_t at = 0;
    /* Finish or give up the held character, which has one to three bytes. */
    while (stream->n_held > 0 && stream->n_held < sizeof stream->held && at < size) {
        uint8_t lead = (uint8_t)stream->held[0];
        if (!is_trailing(lead, stream->n_held, (uint8_t)data[at])) {
            emit(arg, replacement, sizeof replacement - 1);
            stream->n_held = 0;
            break;
        }
        stream->held[stream->n_held++] = data[at++];
        if (stream->n_held == char_size(lead)) {
            emit(arg, stream->held, stream->n_held);
            stream->n_held = 0;
        }
    }
    size_t from = at; /* data[from..at) is whole characters not emitted yet */
    while (at < size) {
        size_t whole;
        size_t n = char_prefix((const uint8_t *)data + at, size - at, &whole);
        if (n == whole) {
            at += n;
            continue;
        }
        if (at > from)
            emit(arg, data + from, at - from);
        if (whole > 0 && at + n == size) { /* right so far: wait for the rest */
            memcpy(stream->held, data + at, n);
            stream->n_held = n;
        } else {
            emit(arg, replacement, sizeof replacement - 1);
        }
        at += n;
        from = at;
    }
    if (at > from)
        emit(arg, data + from, at - from);
}

void sl_utf8_stream_end(sl_utf8_stream *stream, void (*emit)(void *arg, const char *text, size_t size), void *arg)
{
    if (stream->n_held > 0)
        emit(arg, replacement, sizeof replacement - 1);
    stream->n_held = 0;
}
