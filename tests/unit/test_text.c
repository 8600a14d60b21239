/* Reading texts, UTF-8, printed sizes, and the progress line. */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

#include "common/progress.h"
#include "common/text.h"

static void reads_a_file(void **state)
{
    (void)state;
    char path[] = "/tmp/sluice_text_XXXXXX";
    int fd = mkstemp(path);
    assert_true(fd >= 0);
    size_t n = 200001; /* more than one growth of the buffer */
    char *data = malloc(n);
    assert_non_null(data);
    for (size_t i = 0; i < n; i++)
        data[i] = (char)(i % 251);
    assert_int_equal(write(fd, data, n), (int)n);
    close(fd);
    char *text = NULL;
    size_t size = 0;
    sl_err err = {0};
    assert_int_equal(sl_text_read(path, n, NULL, &text, &size, &err), SL_OK);
    assert_int_equal(size, n);
    assert_memory_equal(text, data, n);
    assert_int_equal(text[n], 0);
    free(text);
    assert_int_equal(sl_text_read(path, n - 1, NULL, &text, &size, &err), SL_REFUSED);
    assert_non_null(strstr(err.text, "longer than the limit of 200000 bytes"));
    free(data);
    unlink(path);
    assert_int_equal(sl_text_read(path, n, NULL, &text, &size, &err), SL_FAILED);
    assert_non_null(strstr(err.text, "No such file"));
    assert_int_equal(sl_text_read("/tmp", n, NULL, &text, &size, &err), SL_FAILED);
    assert_string_equal(err.text, "/tmp: is a directory, expected a text file, or - for standard input");
}

static void checks_utf8(void **state)
{
    (void)state;
    static const struct {
        const char *text;
        size_t valid;
    } cases[] = {
        {"", 0}, {"abc", 3}, {"\xc2\x80", 2}, {"\xdf\xbf", 2}, {"\xe0\xa0\x80", 3}, {"\xef\xbf\xbf", 3},
        {"\xf0\x90\x80\x80", 4}, {"\xf4\x8f\xbf\xbf", 4}, {"\xed\x9f\xbf", 3},
        {"a\x80", 1}, {"a\xc1\xbf", 1}, {"a\xe0\x9f\xbf", 1}, {"a\xf0\x8f\xbf\xbf", 1}, {"a\xf4\x90\x80\x80", 1},
        {"a\xed\xa0\x80", 1}, {"a\xf5\x80\x80\x80", 1}, {"a\xe2\x82", 1}, {"a\xe2\x28\xa1", 1}, {"a\xff", 1},
    };
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++)
        assert_int_equal(sl_text_utf8_prefix(cases[i].text, strlen(cases[i].text)), cases[i].valid);
}

static void formats_numbers(void **state)
{
    (void)state;
    char out[SL_TEXT_NUMBER_BYTES];
    assert_string_equal(sl_text_format_size(0, out), "0 B");
    assert_string_equal(sl_text_format_size(1023, out), "1023 B");
    assert_string_equal(sl_text_format_size(1024, out), "1.00 KiB");
    assert_string_equal(sl_text_format_size(160ull << 20, out), "160 MiB");
    assert_string_equal(sl_text_format_size(1048575, out), "1.00 MiB");
    assert_string_equal(sl_text_format_size(UINT64_MAX, out), "16777216 TiB");
    assert_string_equal(sl_text_format_rate(2.7e9, out), "2.70 GB/s");
    assert_string_equal(sl_text_format_rate(999.6e6, out), "1.00 GB/s");
    assert_string_equal(sl_text_format_rate(12.34e6, out), "12.3 MB/s");
    assert_string_equal(sl_text_format_rate((double)NAN, out), "-");
    assert_string_equal(sl_text_format_rate(-1, out), "-");
    assert_string_equal(sl_text_format_time(0.421, out), "0.42 s");
    assert_string_equal(sl_text_format_time(59.96, out), "1 m 00 s");
    assert_string_equal(sl_text_format_time(185, out), "3 m 05 s");
    assert_string_equal(sl_text_format_time(7620, out), "2 h 07 m");
    assert_string_equal(sl_text_format_time((double)NAN, out), "-");
}

static void error_text_is_one_line(void **state)
{
    (void)state;
    sl_err err;
    assert_int_equal(sl_text_error(&err, SL_DAMAGED, "%s", "two\nlines\x1b[31m"), SL_DAMAGED);
    assert_string_equal(err.text, "two lines [31m");
    assert_int_equal(sl_text_error(NULL, SL_FAILED, "x"), SL_FAILED);
}

static char *draw_phase(bool is_terminal)
{
    char *text = NULL;
    size_t size = 0;
    FILE *file = open_memstream(&text, &size);
    assert_non_null(file);
    sl_progress progress;
    sl_progress_init(&progress, file, is_terminal);
    for (int i = 0; i <= 25; i++) {
        sl_progress_state at = {"prefill", "tokens", (uint64_t)i * 100, 2500};
        sl_progress_update(&progress, &at, 1000.0 + i);
    }
    sl_progress_clear(&progress);
    sl_progress_clear(&progress);
    fclose(file);
    return text;
}

static void progress_in_a_pipe_is_a_line_every_ten_seconds(void **state)
{
    (void)state;
    char *text = draw_phase(false);
    assert_string_equal(text, "prefill 300/2500 tokens, 100/s, 22.0 s left\n"
                              "prefill 1300/2500 tokens, 100/s, 12.0 s left\n"
                              "prefill 2300/2500 tokens, 100/s, 2.00 s left\n"
                              "prefill 2500/2500 tokens, 100/s, took 25.0 s\n");
    free(text);
}

static void progress_has_room_for_a_note(void **state)
{
    (void)state;
    for (int is_terminal = 0; is_terminal < 2; is_terminal++) {
        char text[512];
        FILE *file = tmpfile();
        assert_non_null(file);
        sl_progress progress;
        sl_progress_init(&progress, file, is_terminal);
        progress.note = "12% committed, 3.00 MiB written";
        sl_progress_state at = {"prefill", "tokens", 0, 400};
        sl_progress_update(&progress, &at, 100.0);
        at.done = 200;
        sl_progress_update(&progress, &at, 110.0);
        rewind(file);
        text[fread(text, 1, sizeof text - 1, file)] = '\0';
        fclose(file);
        assert_non_null(strstr(text, is_terminal ? "\033[?7lprefill [#####.....]  50% 200/400" : "prefill 200/400"));
        assert_non_null(strstr(text, " tokens, 20/s, 10.0 s left; 12% committed, 3.00 MiB written"));
        assert_non_null(strstr(text, is_terminal ? "written\033[?7h" : "written\n"));
    }
}

static void progress_foresees_growing_cost(void **state)
{
    (void)state;
    char *text = NULL;
    size_t size = 0;
    FILE *file = open_memstream(&text, &size);
    assert_non_null(file);
    sl_progress progress;
    sl_progress_init(&progress, file, false);
    /* time = 0.01 n + 0.0001 n^2: 500 items take 30 s */
    for (uint64_t n = 0; n <= 500; n++) {
        sl_progress_state at = {"prefill", "tokens", n, 500};
        sl_progress_update(&progress, &at, 0.01 * (double)n + 0.0001 * (double)(n * n));
    }
    fclose(file);
    /* the second line: n = 315, 13.07 s; 16.93 s are left */
    assert_non_null(strstr(text, "prefill 315/500 tokens, 24/s, 16.9 s left\n"));
    free(text);
}

static void progress_of_a_short_phase_is_silent_in_a_pipe(void **state)
{
    (void)state;
    char *text = NULL;
    size_t size = 0;
    FILE *file = open_memstream(&text, &size);
    assert_non_null(file);
    sl_progress progress;
    sl_progress_init(&progress, file, false);
    sl_progress_state at = {"loading", "MiB", 0, 9};
    sl_progress_update(&progress, &at, 0);
    at.done = 9;
    sl_progress_update(&progress, &at, 2.9);
    fclose(file);
    assert_string_equal(text, "");
    free(text);
}

static void progress_on_a_terminal_leaves_a_clean_line(void **state)
{
    (void)state;
    char *text = draw_phase(true);
    assert_null(strchr(text, '\n'));
    assert_non_null(strstr(text, "\r\033[Kprefill [############............]  52% "));
    size_t n = strlen(text);
    assert_string_equal(text + n - 4, "\r\033[K");
    assert_memory_not_equal(text + n - 8, "\r\033[K", 4);
    free(text);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(reads_a_file),
        cmocka_unit_test(checks_utf8),
        cmocka_unit_test(formats_numbers),
        cmocka_unit_test(error_text_is_one_line),
        cmocka_unit_test(progress_in_a_pipe_is_a_line_every_ten_seconds),
        cmocka_unit_test(progress_has_room_for_a_note),
        cmocka_unit_test(progress_foresees_growing_cost),
        cmocka_unit_test(progress_of_a_short_phase_is_silent_in_a_pipe),
        cmocka_unit_test(progress_on_a_terminal_leaves_a_clean_line),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
