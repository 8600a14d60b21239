#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>

#include <cmocka.h>

#include "bench/bench.h"

#define COLUMNS                                                                                                        \
    "context_tokens,mode,kv_type,rows,end_to_end_s,compute_s,read_gb_per_s,throughput_per_s,peak_memory_mb\n"

static sl_bench_published table[SL_BENCH_PUBLISHED_MAX];

static void test_built_in_table(void **state)
{
    (void)state;
    sl_err err = {SL_OK, ""};
    size_t n = 0;
    assert_int_equal(sl_bench_published_parse(sl_bench_published_text, table, SL_BENCH_PUBLISHED_MAX, &n, &err), SL_OK);
    assert_int_equal(n, 12);
    assert_non_null(strstr(sl_bench_published_text, "not measured by this project"));
    /* the first and the last line, as published */
    assert_int_equal(table[0].context_tokens, 4096);
    assert_string_equal(table[0].mode, "in-memory");
    assert_string_equal(table[0].kv_type, "f16");
    assert_int_equal(table[0].rows, 4096);
    assert_true(table[0].end_to_end_s == 0.04340);
    assert_true(table[0].read_gb_per_s < 0); /* not told */
    assert_int_equal(table[11].context_tokens, 1048576);
    assert_string_equal(table[11].mode, "mode-b");
    assert_int_equal(table[11].rows, 64);
    assert_true(table[11].throughput_per_s == 35.2);
    assert_true(table[11].peak_memory_mb == 12513.6);
}

static void test_match(void **state)
{
    (void)state;
    sl_err err = {SL_OK, ""};
    size_t n = 0;
    assert_int_equal(sl_bench_published_parse(sl_bench_published_text, table, SL_BENCH_PUBLISHED_MAX, &n, &err), SL_OK);
    sl_bench_row row = {.mode = "mode-b", .kv_type = "q8_0", .context_tokens = 65536, .rows = 64};
    sl_bench_published_match(table, n, &row);
    assert_true(row.has_published);
    assert_true(row.published.end_to_end_s == 0.16274);
    sl_bench_row other = {.mode = "mode-b", .kv_type = "f16", .context_tokens = 65536, .rows = 64};
    sl_bench_published_match(table, n, &other);
    assert_false(other.has_published);
}

static void refuse(const char *text, const char *named)
{
    sl_err err = {SL_OK, ""};
    size_t n = 0;
    assert_int_equal(sl_bench_published_parse(text, table, SL_BENCH_PUBLISHED_MAX, &n, &err), SL_DAMAGED);
    assert_non_null(strstr(err.text, named));
}

static void test_bad_tables(void **state)
{
    (void)state;
    refuse("4096,mode-a,q8_0,1,1,1,1,1,1\n", "line 1");
    refuse("# words\n" COLUMNS "4096,mode-a,q8_0,1,1,1,1,1\n", "line 3");
    refuse(COLUMNS "4096,mode-a,q8_0,1,1,1,1,1,1,1\n", "line 2");
    refuse(COLUMNS "x,mode-a,q8_0,1,1,1,1,1,1\n", "line 2");
    refuse(COLUMNS "4096,mode-a,q8_0,1,-1,1,1,1,1\n", "line 2");
    refuse(COLUMNS "4096,a-mode-of-too-many-letters,q8_0,1,1,1,1,1,1\n", "line 2");
    refuse(COLUMNS "4096,,q8_0,1,1,1,1,1,1\n", "line 2");
    refuse(COLUMNS "4096,mode-a,q8_0,1,1.2.3,1,1,1,1\n", "line 2");
    sl_err err = {SL_OK, ""};
    size_t n = 9;
    assert_int_equal(sl_bench_published_parse(COLUMNS, table, 1, &n, &err), SL_OK);
    assert_int_equal(n, 0);
    assert_int_equal(sl_bench_published_parse(COLUMNS "1,a,b,1,,,,,\n2,a,b,1,,,,,\n", table, 1, &n, &err), SL_DAMAGED);
}

/* JSON and CSV take the same columns, whatever a row holds. */
static void test_fields(void **state)
{
    (void)state;
    const sl_bench_row empty = {.mode = "mode-b", .kv_type = "q8_0", .page_cache_bytes = -1};
    sl_bench_field fields[SL_BENCH_FIELDS];
    size_t n = sl_bench_fields(&empty, fields);
    assert_in_range(n, 13, SL_BENCH_FIELDS);
    static const char *const wanted[] = {"context_tokens", "mode", "kv_type", "rows", "end_to_end_s", "compute_s",
                                         "read_s", "wait_s", "floor_s", "read_gb_per_s", "verified_rows_per_s",
                                         "peak_rss_bytes", "io_mode"};
    for (size_t i = 0; i < sizeof wanted / sizeof wanted[0]; i++) {
        size_t found = 0;
        for (size_t f = 0; f < n; f++)
            found += strcmp(fields[f].name, wanted[i]) == 0;
        assert_int_equal(found, 1);
    }
    for (size_t f = 0; f < n; f++)
        if (strncmp(fields[f].name, "published_", 10) == 0 || strcmp(fields[f].name, "page_cache_bytes") == 0)
            assert_true(isnan(fields[f].number));
}

static void test_spread(void **state)
{
    (void)state;
    double odd[] = {3, 1, 2}, even[] = {4, 1, 2, 3};
    sl_bench_spread spread = sl_bench_spread_of(odd, 3);
    assert_true(spread.median == 2 && spread.least == 1 && spread.most == 3);
    spread = sl_bench_spread_of(even, 4);
    assert_true(spread.median == 2.5 && spread.least == 1 && spread.most == 4);
    spread = sl_bench_spread_of(even, 0);
    assert_true(spread.median == 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_built_in_table), cmocka_unit_test(test_match),  cmocka_unit_test(test_bad_tables),
        cmocka_unit_test(test_fields),         cmocka_unit_test(test_spread),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
