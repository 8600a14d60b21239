#include <setjmp.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "bench/bench.h"

static const char *scratch(void)
{
    static char path[512];
    const char *dir = getenv("SLUICE_TEST_DIR");
    snprintf(path, sizeof path, "%s/test_svg.svg", dir ? dir : "/var/tmp");
    return path;
}

static char *slurp(const char *path)
{
    FILE *file = fopen(path, "rb");
    assert_non_null(file);
    char *text = calloc(1, 1 << 20);
    assert_non_null(text);
    assert_true(fread(text, 1, (1 << 20) - 1, file) > 0);
    fclose(file);
    return text;
}

static size_t count_of(const char *text, const char *what)
{
    size_t n = 0;
    for (const char *at = text; (at = strstr(at, what)) != NULL; at++)
        n++;
    return n;
}

/* Every element is closed by its own name, in order, and attributes are quoted. Enough of XML for what is written. */
static int is_well_formed(const char *text)
{
    char open[16][16];
    int depth = 0, n_roots = 0;
    for (const char *at = strchr(text, '<'); at; at = strchr(at, '<')) {
        const char *end = strchr(at, '>');
        if (!end || memchr(at + 1, '<', (size_t)(end - at - 1)))
            return 0;
        size_t n_quotes = 0;
        for (const char *c = at; c < end; c++)
            n_quotes += *c == '"';
        if (n_quotes % 2 != 0)
            return 0;
        char name[16] = "";
        int closing = at[1] == '/';
        size_t length = strspn(at + 1 + closing, "abcdefghijklmnopqrstuvwxyz");
        if (at[1] != '?') {
            if (length == 0 || length >= sizeof name)
                return 0;
            memcpy(name, at + 1 + closing, length);
            if (closing && (depth == 0 || strcmp(open[--depth], name) != 0))
                return 0;
            n_roots += !closing && depth == 0;
            if (!closing && end[-1] != '/') {
                if (depth == 16)
                    return 0;
                memcpy(open[depth++], name, sizeof name);
            }
        }
        at = end;
    }
    return depth == 0 && n_roots == 1;
}

static void test_the_checker_can_fail(void **state)
{
    (void)state;
    assert_true(is_well_formed("<?xml version=\"1.0\"?>\n<svg a=\"b\"><rect/><text>x</text></svg>"));
    assert_false(is_well_formed("<svg><text>x</svg>"));
    assert_false(is_well_formed("<svg a=\"b><rect/></svg>"));
    assert_false(is_well_formed("<svg><rect</svg>"));
    assert_false(is_well_formed("<svg/><svg/>"));
}

static sl_bench_row row(const char *mode, uint64_t tokens, uint64_t rows, uint64_t ram, double speed)
{
    return (sl_bench_row){.mode = mode, .kv_type = "q8_0", .context_tokens = tokens, .rows = rows,
                          .ram_bytes = ram << 20, .verified_rows_per_s = speed, .io_mode = "direct"};
}

static void test_contexts(void **state)
{
    (void)state;
    sl_err err = {SL_OK, ""};
    const sl_bench_row rows[] = {row("mode-b", 4096, 64, 384, 900), row("mode-b", 1 << 20, 64, 384, 35),
                                 row("mode-b", 65536, 64, 384, 400), row("naive", 1 << 20, 1, 384, 0.6)};
    assert_int_equal(sl_bench_write_svg(rows, 4, scratch(), &err), SL_OK);
    char *text = slurp(scratch());
    assert_true(is_well_formed(text));
    assert_non_null(strstr(text, "Speed against context length"));
    assert_null(strstr(text, "Speed against memory"));
    assert_int_equal(count_of(text, "<polyline"), 2);
    assert_int_equal(count_of(text, "rows/s</title>"), 4);
    assert_non_null(strstr(text, "mode-b, q8_0, 64 rows"));
    /* A line goes from left to right, in whatever order its points were measured. */
    const char *points = strstr(text, "points=\"");
    double last = 0, x = 0, y = 0;
    for (const char *at = points + 8; sscanf(at, "%lf,%lf", &x, &y) == 2; at = strchr(at, ' ') + 1) {
        assert_true(x > last);
        last = x;
        if (strcspn(at, " ") > strcspn(at, "\""))
            break;
    }
    assert_true(last > 0);
    free(text);
    remove(scratch());
}

static void test_budgets(void **state)
{
    (void)state;
    sl_err err = {SL_OK, ""};
    const sl_bench_row rows[] = {row("mode-b", 65536, 64, 64, 100), row("mode-b", 65536, 64, 128, 150),
                                 row("mode-b", 65536, 64, 320, 900)};
    assert_int_equal(sl_bench_write_svg(rows, 3, scratch(), &err), SL_OK);
    char *text = slurp(scratch());
    assert_true(is_well_formed(text));
    assert_non_null(strstr(text, "Speed against memory"));
    assert_null(strstr(text, "context length"));
    free(text);
    remove(scratch());
}

/* A row without a speed is no point; one row alone is a picture too. */
static void test_edges(void **state)
{
    (void)state;
    sl_err err = {SL_OK, ""};
    sl_bench_row rows[] = {row("mode-b", 4096, 64, 384, 0)};
    assert_int_equal(sl_bench_write_svg(rows, 1, scratch(), &err), SL_OK);
    char *text = slurp(scratch());
    assert_true(is_well_formed(text));
    assert_int_equal(count_of(text, "rows/s</title>"), 0);
    assert_null(strstr(text, "nan"));
    assert_null(strstr(text, "inf"));
    free(text);
    remove(scratch());
    assert_int_equal(sl_bench_write_svg(rows, 1, "/nonexistent/folder/x.svg", &err), SL_FAILED);
    assert_non_null(strstr(err.text, "/nonexistent/folder/x.svg"));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_the_checker_can_fail),
        cmocka_unit_test(test_contexts),
        cmocka_unit_test(test_budgets),
        cmocka_unit_test(test_edges),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
