/* The first walk: structure only, through one window of fixed size, so that nothing a file claims is believed before
 * it was seen. */
#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "gguf/gguf_parse.h"

#define WINDOW_BYTES 65536u
#define KEY_MAX_BYTES 65535u /* gguf.md: a key is at most 2^16 - 1 bytes */
#define NAME_MAX_BYTES 64u   /* gguf.md: a tensor's name is at most 64 bytes */
#define VALUE_MIN_BYTES 14u  /* key length 8, key 1, type 4, value 1 */
#define TENSOR_MIN_BYTES 33u /* name length 8, name 1, n_dims 4, one dim 8, type 4, offset 8 */

typedef struct scan {
    const sl_gguf *gguf;
    uint8_t *window;
    uint64_t window_off;
    size_t window_bytes;
    uint64_t pos;
    char item[SL_GGUF_NAME_BYTES + 24]; /* what is being read: "key 'general.name'" */
} scan;

static uint64_t left(const scan *s)
{
    return s->gguf->file_bytes - s->pos;
}

/* n <= WINDOW_BYTES bytes at the position, which stays; NULL after an error. */
static const uint8_t *look(scan *s, size_t n, const char *field, sl_err *err)
{
    if (n > left(s)) {
        sl_gguf_damaged(s->gguf, err,
                        "cut short: %s, %s at offset %" PRIu64 " needs %zu bytes, the file ends at %" PRIu64, s->item,
                        field, s->pos, n, s->gguf->file_bytes);
        return NULL;
    }
    bool inside = s->pos >= s->window_off && s->pos - s->window_off <= s->window_bytes &&
                  n <= s->window_bytes - (size_t)(s->pos - s->window_off);
    if (!inside) {
        s->window_bytes = 0;
        size_t want = left(s) < WINDOW_BYTES ? (size_t)left(s) : WINDOW_BYTES;
        if (sl_gguf_fetch(s->gguf, s->window, want, s->pos, err) != SL_OK)
            return NULL;
        s->window_off = s->pos;
        s->window_bytes = want;
    }
    return s->window + (s->pos - s->window_off);
}

/* A little-endian integer; false after an error (already written, status SL_FAILED when reading failed). */
static bool take(scan *s, size_t n_bytes, const char *field, uint64_t *out, sl_err *err)
{
    const uint8_t *at = look(s, n_bytes, field, err);
    if (!at)
        return false;
    sl_span span = sl_span_of(at, n_bytes);
    *out = sl_span_uint(&span, n_bytes);
    s->pos += n_bytes;
    return true;
}

/* Passes over n items of item_bytes > 0. */
static bool skip(scan *s, uint64_t n, size_t item_bytes, const char *field, sl_err *err)
{
    if (n > left(s) / item_bytes) {
        sl_gguf_damaged(s->gguf, err,
                        "%s, %s at offset %" PRIu64 ": %" PRIu64 " items of %zu bytes claimed, %" PRIu64
                        " bytes are left in the file",
                        s->item, field, s->pos, n, item_bytes, left(s));
        return false;
    }
    s->pos += n * item_bytes;
    return true;
}

static bool skip_string(scan *s, const char *field, sl_err *err)
{
    uint64_t n;
    return take(s, 8, field, &n, err) && skip(s, n, 1, field, err);
}

/* Reads a name and makes it the item that messages speak of. */
static bool scan_name(scan *s, const char *kind, uint64_t i, uint64_t max_bytes, sl_err *err)
{
    uint64_t n;
    snprintf(s->item, sizeof s->item, "%s %" PRIu64, kind, i);
    if (!take(s, 8, "name length", &n, err))
        return false;
    if (n == 0 || (n > max_bytes && n <= left(s))) {
        sl_gguf_damaged(s->gguf, err,
                        "%s, name length at offset %" PRIu64 ": %" PRIu64 " found, 1 to %" PRIu64 " expected", s->item,
                        s->pos - 8, n, max_bytes);
        return false;
    }
    if (n > left(s))
        return skip(s, n, 1, "name", err);
    const uint8_t *name = look(s, (size_t)n, "name", err);
    if (!name)
        return false;
    char shown[SL_GGUF_NAME_BYTES];
    snprintf(s->item, sizeof s->item, "%s '%s'", kind, sl_gguf_show(shown, name, (size_t)n));
    s->pos += n;
    return true;
}

static bool scan_array(scan *s, sl_err *err)
{
    uint64_t type, n;
    uint64_t at = s->pos;
    if (!take(s, 4, "item type", &type, err) || !take(s, 8, "item count", &n, err))
        return false;
    size_t item_bytes = sl_gguf_type_bytes((uint32_t)type);
    if (item_bytes > 0)
        return skip(s, n, item_bytes, "array", err);
    if (type != SL_GGUF_TYPE_STRING) {
        bool nested = type == SL_GGUF_TYPE_ARRAY;
        sl_gguf_damaged(s->gguf, err, "%s, item type at offset %" PRIu64 ": %" PRIu64 " found%s", s->item, at, type,
                        nested ? "; arrays of arrays are not supported" : ", a scalar's or a string's expected");
        return false;
    }
    if (n > left(s) / 8) /* each string has its length */
        return skip(s, n, 8, "array of strings", err);
    for (uint64_t i = 0; i < n; i++)
        if (!skip_string(s, "string of an array", err))
            return false;
    return true;
}

static bool scan_value(scan *s, uint64_t i, sl_err *err)
{
    uint64_t type;
    if (!scan_name(s, "key", i, KEY_MAX_BYTES, err) || !take(s, 4, "value type", &type, err))
        return false;
    size_t bytes = sl_gguf_type_bytes((uint32_t)type);
    if (bytes > 0)
        return look(s, bytes, "value", err) && skip(s, 1, bytes, "value", err);
    if (type == SL_GGUF_TYPE_STRING)
        return skip_string(s, "string", err);
    if (type == SL_GGUF_TYPE_ARRAY)
        return scan_array(s, err);
    sl_gguf_damaged(s->gguf, err, "%s, value type at offset %" PRIu64 ": %" PRIu64 " found, 0 to 12 expected", s->item,
                    s->pos - 4, type);
    return false;
}

static bool scan_tensor(scan *s, uint64_t i, sl_err *err)
{
    uint64_t n_dims, ignored;
    if (!scan_name(s, "tensor", i, NAME_MAX_BYTES, err) || !take(s, 4, "n_dims", &n_dims, err))
        return false;
    if (n_dims < 1 || n_dims > 4) {
        sl_gguf_damaged(s->gguf, err, "%s, n_dims at offset %" PRIu64 ": %" PRIu64 " found, 1 to 4 expected", s->item,
                        s->pos - 4, n_dims);
        return false;
    }
    for (uint64_t d = 0; d < n_dims; d++)
        if (!take(s, 8, "dimension", &ignored, err))
            return false;
    return take(s, 4, "type", &ignored, err) && take(s, 8, "data offset", &ignored, err);
}

static bool refuse_magic(const scan *s, const uint8_t *at, size_t n, sl_err *err)
{
    char shown[SL_GGUF_NAME_BYTES];
    if (n == 0) {
        sl_gguf_damaged(s->gguf, err, "not a GGUF file (it is empty)");
        return false;
    }
    const char *hint = "";
    if (at[0] == '<')
        hint = "; it looks like an HTML page saved under the model's name";
    else if (n == 4 && memcmp(at, "vers", 4) == 0)
        hint = "; it looks like a Git LFS pointer, not the file itself";
    sl_gguf_damaged(s->gguf, err, "not a GGUF file (starts with '%s')%s", sl_gguf_show(shown, at, n), hint);
    return false;
}

/* Offset 0: "GGUF", version u32, n_tensors u64, n_values u64. */
static bool scan_header(scan *s, sl_gguf *gguf, sl_err *err)
{
    size_t n = left(s) < 4 ? (size_t)left(s) : 4;
    const uint8_t *at = look(s, n, "magic", err);
    if (!at)
        return false;
    if (n < 4 || memcmp(at, "GGUF", 4) != 0)
        return refuse_magic(s, at, n, err);
    s->pos += 4;
    uint64_t version;
    if (!take(s, 4, "version", &version, err))
        return false;
    if (version != 0 && (version & 0xffff) == 0) {
        sl_gguf_damaged(s->gguf, err,
                        "a big-endian GGUF file (version 0x%08" PRIx64 " at offset 4), little-endian expected",
                        version);
        return false;
    }
    if (version != 2 && version != 3) {
        sl_gguf_damaged(s->gguf, err, "version at offset 4: %" PRIu64 " found, 2 or 3 expected", version);
        return false;
    }
    gguf->version = (uint32_t)version;
    if (!take(s, 8, "n_tensors", &gguf->n_tensors, err) || !take(s, 8, "n_kv", &gguf->n_values, err))
        return false;
    const char *field = NULL;
    uint64_t found = 0, room = 0;
    if (gguf->n_tensors > left(s) / TENSOR_MIN_BYTES || gguf->n_tensors > UINT32_MAX / 4)
        field = "n_tensors at offset 8", found = gguf->n_tensors, room = left(s) / TENSOR_MIN_BYTES;
    else if (gguf->n_values > left(s) / VALUE_MIN_BYTES || gguf->n_values > UINT32_MAX / 4)
        field = "n_kv at offset 16", found = gguf->n_values, room = left(s) / VALUE_MIN_BYTES;
    if (field)
        sl_gguf_damaged(gguf, err, "%s: %" PRIu64 " found, a file of %" PRIu64 " bytes has room for %" PRIu64, field,
                        found, gguf->file_bytes, room < UINT32_MAX / 4 ? room : UINT32_MAX / 4);
    return field == NULL;
}

static bool scan_all(scan *s, sl_gguf *gguf, sl_err *err)
{
    if (!scan_header(s, gguf, err))
        return false;
    for (uint64_t i = 0; i < gguf->n_values; i++)
        if (!scan_value(s, i, err))
            return false;
    for (uint64_t i = 0; i < gguf->n_tensors; i++)
        if (!scan_tensor(s, i, err))
            return false;
    return true;
}

sl_status sl_gguf_scan(sl_gguf *gguf, sl_err *err)
{
    /* The status travels inside an error text of our own: the helpers above answer yes or no. */
    sl_err own = {SL_OK, ""};
    scan s = {.gguf = gguf, .item = "header"};
    sl_status status = sl_mem_new(gguf->budget, WINDOW_BYTES, 1, "model file window", &s.window, err);
    if (status != SL_OK)
        return status;
    if (scan_all(&s, gguf, &own))
        gguf->meta_bytes = (size_t)s.pos;
    else
        status = sl_err_set(err, own.status, "%s", own.text);
    sl_mem_free(gguf->budget, s.window);
    return status;
}
