/* The JSON writer: nesting, escapes, numbers that read back, output that stays valid. */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "common/json.h"

typedef struct sl_sink {
    char *text;
    size_t size;
    FILE *file;
    sl_json json;
} sl_sink;

static void sink_open(sl_sink *sink)
{
    *sink = (sl_sink){0};
    sink->file = open_memstream(&sink->text, &sink->size);
    assert_non_null(sink->file);
    sl_json_init(&sink->json, sink->file);
}

static void sink_expect(sl_sink *sink, const char *expected)
{
    sl_err err;
    assert_int_equal(sl_json_finish(&sink->json, &err), SL_OK);
    fclose(sink->file);
    assert_string_equal(sink->text, expected);
    free(sink->text);
}

static void nests(void **state)
{
    (void)state;
    sl_sink s;
    sink_open(&s);
    sl_json_object_start(&s.json);
    sl_json_key(&s.json, "positions");
    sl_json_array_start(&s.json);
    for (int i = 0; i < 2; i++) {
        sl_json_object_start(&s.json);
        sl_json_key(&s.json, "id");
        sl_json_int(&s.json, i - 1);
        sl_json_key(&s.json, "top");
        sl_json_array_start(&s.json);
        sl_json_array_end(&s.json);
        sl_json_object_end(&s.json);
    }
    sl_json_array_end(&s.json);
    sl_json_key(&s.json, "ok");
    sl_json_bool(&s.json, true);
    sl_json_key(&s.json, "none");
    sl_json_null(&s.json);
    sl_json_key(&s.json, "bytes");
    sl_json_uint(&s.json, UINT64_MAX);
    sl_json_object_end(&s.json);
    sink_expect(&s, "{\"positions\":[{\"id\":-1,\"top\":[]},{\"id\":0,\"top\":[]}],\"ok\":true,\"none\":null,"
                    "\"bytes\":18446744073709551615}\n");
}

static void escapes(void **state)
{
    (void)state;
    sl_sink s;
    sink_open(&s);
    static const char text[] = "q\" b\\ n\n t\t \x01 \x7f \0 \xc3\xa9 \xf0\x9f\x98\x80";
    sl_json_bytes(&s.json, text, sizeof text - 1);
    sink_expect(&s, "\"q\\\" b\\\\ n\\n t\\t \\u0001 \\u007f \\u0000 \xc3\xa9 \xf0\x9f\x98\x80\"\n");
}

static void invalid_bytes_become_u_fffd(void **state)
{
    (void)state;
    sl_sink s;
    sink_open(&s);
    /* a lone continuation, an overlong form, a surrogate, a character cut off */
    sl_json_string(&s.json, "a\x80" "b\xc0\xaf" "c\xed\xa0\x80" "d\xe2\x82");
#define R "\xef\xbf\xbd"
    sink_expect(&s, "\"a" R "b" R R "c" R R R "d" R R "\"\n");
#undef R
}

static void numbers_read_back(void **state)
{
    (void)state;
    static const float floats[] = {0.1f, 1e-45f, 3.40282347e38f, -16777217.0f, 1.17549435e-38f, 0.333333343f};
    for (size_t i = 0; i < sizeof floats / sizeof floats[0]; i++) {
        sl_sink s;
        sl_err err;
        sink_open(&s);
        sl_json_float(&s.json, floats[i]);
        assert_int_equal(sl_json_finish(&s.json, &err), SL_OK);
        fclose(s.file);
        assert_true(strtof(s.text, NULL) == floats[i]);
        free(s.text);
    }
    sl_sink s;
    sink_open(&s);
    sl_json_array_start(&s.json);
    sl_json_float(&s.json, (float)NAN);
    sl_json_float(&s.json, (float)-INFINITY);
    sl_json_double(&s.json, 0.1);
    sl_json_float(&s.json, -0.0f);
    sl_json_array_end(&s.json);
    sink_expect(&s, "[null,null,0.10000000000000001,-0]\n");
}

static void a_full_disk_is_reported(void **state)
{
    (void)state;
    FILE *file = fopen("/dev/full", "w");
    if (!file)
        skip();
    sl_json json;
    sl_err err = {0};
    sl_json_init(&json, file);
    sl_json_string(&json, "x");
    assert_int_equal(sl_json_finish(&json, &err), SL_FAILED);
    assert_non_null(strstr(err.text, "No space left"));
    fclose(file);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(nests),
        cmocka_unit_test(escapes),
        cmocka_unit_test(invalid_bytes_become_u_fffd),
        cmocka_unit_test(numbers_read_back),
        cmocka_unit_test(a_full_disk_is_reported),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
