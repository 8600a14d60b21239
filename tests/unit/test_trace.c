#include <pthread.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "base/trace.h"

static const char *scratch(void)
{
    static char path[512];
    const char *dir = getenv("SLUICE_TEST_DIR");
    snprintf(path, sizeof path, "%s/test_trace.json", dir ? dir : "/var/tmp");
    return path;
}

/* The whole file, terminated; owned by caller. */
static char *slurp(const char *path)
{
    FILE *file = fopen(path, "rb");
    assert_non_null(file);
    char *text = calloc(1, 4 << 20);
    assert_non_null(text);
    size_t n = fread(text, 1, (4 << 20) - 1, file);
    assert_true(n > 0);
    fclose(file);
    return text;
}

/* ---- a reader of JSON that accepts what RFC 8259 does, strings without escapes ---- */

static const char *blanks(const char *at)
{
    return at + strspn(at, " \n\t\r");
}

static const char *value(const char *at);

static const char *list(const char *at, char close, int is_object)
{
    at = blanks(at + 1);
    if (*at == close)
        return at + 1;
    for (;;) {
        if (is_object) {
            if (*at != '"' || !(at = strchr(at + 1, '"')))
                return NULL;
            at = blanks(at + 1);
            if (*at != ':')
                return NULL;
            at = blanks(at + 1);
        }
        at = value(at);
        if (!at)
            return NULL;
        at = blanks(at);
        if (*at == close)
            return at + 1;
        if (*at != ',')
            return NULL;
        at = blanks(at + 1);
    }
}

static const char *value(const char *at)
{
    if (*at == '[')
        return list(at, ']', 0);
    if (*at == '{')
        return list(at, '}', 1);
    if (*at == '"') {
        at = strchr(at + 1, '"');
        return at ? at + 1 : NULL;
    }
    size_t n = strspn(at, "-0123456789.");
    return n > 0 ? at + n : NULL;
}

static int is_json(const char *text)
{
    const char *end = value(blanks(text));
    return end && *blanks(end) == '\0';
}

static void test_the_checker_can_fail(void **state)
{
    (void)state;
    assert_true(is_json("[{\"a\":1.5,\"b\":{}},2]\n"));
    assert_false(is_json("[{\"a\":1},]"));
    assert_false(is_json("[{\"a\":1}"));
    assert_false(is_json("[{\"a\" 1}]"));
}

static void test_spans(void **state)
{
    (void)state;
    sl_trace *trace = NULL;
    sl_err err = {SL_OK, ""};
    assert_int_equal(sl_trace_open(scratch(), &trace, &err), SL_OK);
    const sl_trace_about part = {3, 17, 4096, -1}, nothing = {-1, -1, -1, -1};
    sl_trace_span(trace, SL_TRACE_LANE_KERNEL, "attention", 12.25, 12.5, part);
    sl_trace_span(trace, SL_TRACE_LANE_PASS, "pass", 12.0, 13.0, nothing);
    sl_trace_span(trace, SL_TRACE_LANE_READ, "read", 1.5, 1.75, (sl_trace_about){-1, -1, 8192, 0});
    sl_trace_span(trace, SL_TRACE_LANE_READ, "read", 1.6, 1.9, nothing);
    /* A clock that went back: no negative length. */
    sl_trace_span(trace, SL_TRACE_LANE_WAIT, "wait", 2.0, 1.0, nothing);
    assert_int_equal(sl_trace_close(trace, &err), SL_OK);
    char *text = slurp(scratch());
    assert_true(is_json(text));
    assert_non_null(strstr(text, "{\"ph\":\"X\",\"pid\":1,\"tid\":2,\"name\":\"attention\",\"ts\":12250000.000,"
                                 "\"dur\":250000.000,\"args\":{\"layer\":3,\"part\":17,\"bytes\":4096}}"));
    assert_non_null(strstr(text, "\"name\":\"pass\",\"ts\":12000000.000,\"dur\":1000000.000,\"args\":{}}"));
    /* Reads overlap: each has an id of its own, a beginning and an end. */
    assert_non_null(strstr(text, "{\"ph\":\"b\",\"cat\":\"read\",\"id\":1,\"pid\":1,\"tid\":5,\"name\":\"read\","
                                 "\"ts\":1500000.000,\"args\":{\"bytes\":8192,\"off\":0}}"));
    assert_non_null(strstr(text, "{\"ph\":\"e\",\"cat\":\"read\",\"id\":1,\"pid\":1,\"tid\":5,\"name\":\"read\","
                                 "\"ts\":1750000.000}"));
    assert_non_null(strstr(text, "{\"ph\":\"e\",\"cat\":\"read\",\"id\":2,"));
    assert_non_null(strstr(text, "\"name\":\"wait\",\"ts\":2000000.000,\"dur\":0.000"));
    assert_null(strstr(text, ":-"));
    free(text);
    remove(scratch());
}

static void test_nothing_happened(void **state)
{
    (void)state;
    sl_trace *trace = NULL;
    sl_err err = {SL_OK, ""};
    assert_int_equal(sl_trace_open(scratch(), &trace, &err), SL_OK);
    assert_int_equal(sl_trace_close(trace, &err), SL_OK);
    char *text = slurp(scratch());
    assert_true(is_json(text));
    assert_non_null(strstr(text, "waiting for flash"));
    free(text);
    remove(scratch());
    /* No trace: everything is taken, nothing is done. */
    sl_trace_span(NULL, SL_TRACE_LANE_PASS, "pass", 0.0, 1.0, (sl_trace_about){0, 0, 0, 0});
    assert_int_equal(sl_trace_close(NULL, &err), SL_OK);
}

enum { N_THREADS = 4, N_SPANS = 2000 };

static void *draw(void *arg)
{
    for (int i = 0; i < N_SPANS; i++)
        sl_trace_span(arg, (sl_trace_lane)(i % SL_TRACE_LANE_COUNT), "span", i, i + 0.5,
                      (sl_trace_about){i, INT64_MAX, INT64_MAX, INT64_MAX});
    return NULL;
}

static void test_threads(void **state)
{
    (void)state;
    sl_trace *trace = NULL;
    sl_err err = {SL_OK, ""};
    assert_int_equal(sl_trace_open(scratch(), &trace, &err), SL_OK);
    pthread_t threads[N_THREADS];
    for (int i = 0; i < N_THREADS; i++)
        assert_int_equal(pthread_create(&threads[i], NULL, draw, trace), 0);
    for (int i = 0; i < N_THREADS; i++)
        pthread_join(threads[i], NULL);
    assert_int_equal(sl_trace_close(trace, &err), SL_OK);
    char *text = slurp(scratch());
    assert_true(is_json(text));
    size_t n = 0;
    for (const char *at = text; (at = strstr(at, "\"name\":\"span\"")) != NULL; at++)
        n++;
    /* Every span once, reads twice: beginning and end. */
    size_t n_reads = (N_SPANS + SL_TRACE_LANE_COUNT - 1 - SL_TRACE_LANE_READ) / SL_TRACE_LANE_COUNT;
    assert_int_equal(n, N_THREADS * (N_SPANS + n_reads));
    free(text);
    remove(scratch());
}

static void test_failures(void **state)
{
    (void)state;
    sl_trace *trace = NULL;
    sl_err err = {SL_OK, ""};
    assert_int_equal(sl_trace_open("/nonexistent/folder/trace.json", &trace, &err), SL_FAILED);
    assert_null(trace);
    assert_non_null(strstr(err.text, "/nonexistent/folder/trace.json"));
    FILE *full = fopen("/dev/full", "w");
    if (!full)
        skip();
    fclose(full);
    assert_int_equal(sl_trace_open("/dev/full", &trace, &err), SL_OK);
    draw(trace);
    assert_int_equal(sl_trace_close(trace, &err), SL_FAILED);
    assert_non_null(strstr(err.text, "/dev/full: the trace is not complete"));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_the_checker_can_fail), cmocka_unit_test(test_spans),
        cmocka_unit_test(test_nothing_happened),     cmocka_unit_test(test_threads),
        cmocka_unit_test(test_failures),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
