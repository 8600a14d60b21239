#include "common/json.h"

#include <assert.h>
#include <errno.h>
#include <inttypes.h>
#include <math.h>
#include <string.h>

#include "common/text.h"

void sl_json_init(sl_json *json, FILE *file)
{
    *json = (sl_json){.file = file};
}

/* Called before every value: the comma, and that a value may stand here. */
static void begin_value(sl_json *json)
{
    if (json->is_object[json->depth]) {
        assert(json->has_key);
        json->has_key = false;
        return;
    }
    assert(json->depth > 0 || !json->has_item[0]);
    if (json->has_item[json->depth])
        fputc(',', json->file);
    json->has_item[json->depth] = true;
}

static void start(sl_json *json, bool is_object)
{
    begin_value(json);
    assert(json->depth < SL_JSON_DEPTH_MAX);
    json->depth++;
    json->is_object[json->depth] = is_object;
    json->has_item[json->depth] = false;
    fputc(is_object ? '{' : '[', json->file);
}

static void end(sl_json *json, bool is_object)
{
    assert(json->depth > 0 && json->is_object[json->depth] == is_object && !json->has_key);
    fputc(is_object ? '}' : ']', json->file);
    json->depth--;
}

void sl_json_object_start(sl_json *json)
{
    start(json, true);
}

void sl_json_object_end(sl_json *json)
{
    end(json, true);
}

void sl_json_array_start(sl_json *json)
{
    start(json, false);
}

void sl_json_array_end(sl_json *json)
{
    end(json, false);
}

static void write_escaped(FILE *file, unsigned char c)
{
    static const char letters[] = "\"\"\\\\\bb\ff\nn\rr\tt";
    for (size_t i = 0; letters[i]; i += 2) {
        if (c == (unsigned char)letters[i]) {
            fprintf(file, "\\%c", letters[i + 1]);
            return;
        }
    }
    fprintf(file, "\\u%04x", (unsigned)c);
}

static void write_valid(FILE *file, const char *text, size_t n_bytes)
{
    for (size_t i = 0; i < n_bytes; i++) {
        unsigned char c = (unsigned char)text[i];
        if (c < ' ' || c == '"' || c == '\\' || c == 0x7f)
            write_escaped(file, c);
        else
            fputc(c, file);
    }
}

static void write_string(FILE *file, const char *text, size_t n_bytes)
{
    fputc('"', file);
    size_t at = 0;
    while (at < n_bytes) {
        size_t valid = sl_text_utf8_prefix(text + at, n_bytes - at);
        write_valid(file, text + at, valid);
        at += valid;
        if (at < n_bytes) {
            fputs("\xef\xbf\xbd", file);
            at++;
        }
    }
    fputc('"', file);
}

void sl_json_key(sl_json *json, const char *key)
{
    assert(json->is_object[json->depth] && !json->has_key);
    if (json->has_item[json->depth])
        fputc(',', json->file);
    json->has_item[json->depth] = true;
    json->has_key = true;
    write_string(json->file, key, strlen(key));
    fputc(':', json->file);
}

void sl_json_bytes(sl_json *json, const char *text, size_t n_bytes)
{
    begin_value(json);
    write_string(json->file, text, n_bytes);
}

void sl_json_string(sl_json *json, const char *text)
{
    sl_json_bytes(json, text, strlen(text));
}

void sl_json_int(sl_json *json, int64_t value)
{
    begin_value(json);
    fprintf(json->file, "%" PRId64, value);
}

void sl_json_uint(sl_json *json, uint64_t value)
{
    begin_value(json);
    fprintf(json->file, "%" PRIu64, value);
}

static void write_number(sl_json *json, double value, int digits)
{
    begin_value(json);
    if (isfinite(value))
        fprintf(json->file, "%.*g", digits, value);
    else
        fputs("null", json->file);
}

void sl_json_float(sl_json *json, float value)
{
    write_number(json, (double)value, 9);
}

void sl_json_double(sl_json *json, double value)
{
    write_number(json, value, 17);
}

void sl_json_bool(sl_json *json, bool value)
{
    begin_value(json);
    fputs(value ? "true" : "false", json->file);
}

void sl_json_null(sl_json *json)
{
    begin_value(json);
    fputs("null", json->file);
}

sl_status sl_json_finish(sl_json *json, sl_err *err)
{
    assert(json->depth == 0);
    errno = 0;
    fputc('\n', json->file);
    bool failed = fflush(json->file) != 0 || ferror(json->file);
    if (failed)
        return sl_text_error(err, SL_FAILED, "writing JSON failed: %s", errno ? strerror(errno) : "write error");
    return SL_OK;
}
