/* A writer of one JSON value (RFC 8259) to a FILE, as it goes: nothing is kept but the nesting.
 * Owns nothing. Refuses nothing: a misuse (a key outside an object, a value without its key) is our own broken
 * promise and asserts. Output is always valid: bytes that are not UTF-8 become U+FFFD, NaN and infinities null.
 * Thread rule: one thread at a time. */
#ifndef SL_JSON_H
#define SL_JSON_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>

#include <sluice/status.h>

#define SL_JSON_DEPTH_MAX 16

typedef struct sl_json {
    FILE *file; /* borrowed until sl_json_finish */
    int depth;
    bool is_object[SL_JSON_DEPTH_MAX + 1];
    bool has_item[SL_JSON_DEPTH_MAX + 1];
    bool has_key; /* a key was written and waits for its value */
} sl_json;

void sl_json_init(sl_json *json, FILE *file);

void sl_json_object_start(sl_json *json);
void sl_json_object_end(sl_json *json);
void sl_json_array_start(sl_json *json);
void sl_json_array_end(sl_json *json);
void sl_json_key(sl_json *json, const char *key);

void sl_json_string(sl_json *json, const char *text);
void sl_json_bytes(sl_json *json, const char *text, size_t n_bytes);
void sl_json_int(sl_json *json, int64_t value);
void sl_json_uint(sl_json *json, uint64_t value);
void sl_json_float(sl_json *json, float value);   /* %.9g: reads back to the same binary32 */
void sl_json_double(sl_json *json, double value); /* %.17g */
void sl_json_bool(sl_json *json, bool value);
void sl_json_null(sl_json *json);

/* Ends the line and flushes. SL_FAILED when any write failed (disk full, reader gone). */
sl_status sl_json_finish(sl_json *json, sl_err *err);

#endif
