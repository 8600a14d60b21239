/* The option parser: every kind, every refusal with its one line. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "common/args.h"

typedef struct sl_values {
    bool json;
    bool n_given;
    int64_t n;
    int64_t draft;
    int64_t ram;
    int64_t window;
    double temp;
    const char *model;
    const char *prompt;
    sl_arg_list files;
    int kv;
} sl_values;

static const char *const KV_CHOICES[] = {"q8_0", "f16", NULL};

/* Parses the words of `line`, split at single blanks; "''" is an empty word. */
static sl_status parse(const char *line, sl_values *values, sl_args_result *result, sl_err *err)
{
    const sl_arg options[] = {
        {.name = "model", .letter = 'm', .kind = SL_ARG_KIND_STRING, .out = &values->model, .required = true},
        {.name = "prompt", .letter = 'p', .kind = SL_ARG_KIND_STRING, .out = &values->prompt, .allow_empty = true},
        {.name = "number", .letter = 'n', .kind = SL_ARG_KIND_INT, .out = &values->n, .given = &values->n_given,
         .min = 1, .max = 1000, .default_text = "128"},
        {.name = "draft", .kind = SL_ARG_KIND_INT, .out = &values->draft, .max = 255},
        {.name = "ram", .kind = SL_ARG_KIND_SIZE, .out = &values->ram, .min = 16 << 20, .max = INT64_MAX},
        {.name = "window", .kind = SL_ARG_KIND_TOKENS, .out = &values->window, .min = 64, .max = 4096},
        {.name = "temp", .kind = SL_ARG_KIND_FLOAT, .out = &values->temp, .low = 0, .high = 100},
        {.name = "kv", .kind = SL_ARG_KIND_CHOICE, .out = &values->kv, .choices = KV_CHOICES, .group = "cache"},
        {.name = "file", .letter = 'f', .kind = SL_ARG_KIND_LIST, .out = &values->files},
        {.name = "json", .kind = SL_ARG_KIND_FLAG, .out = &values->json, .help = "one object"},
    };
    const sl_args_table table = {.usage = "sluice run", .options = options,
                                 .n_options = sizeof options / sizeof options[0], .max_words = 1,
                                 .words_name = "FILE"};
    static char copy[4096];
    char *argv[64];
    int argc = 0;
    snprintf(copy, sizeof copy, "%s", line);
    for (char *word = strtok(copy, " "); word; word = strtok(NULL, " "))
        argv[argc++] = strcmp(word, "''") == 0 ? word + 2 : word;
    *values = (sl_values){0};
    return sl_args_parse(&table, argc, argv, result, err);
}

static void takes_every_form(void **state)
{
    (void)state;
    sl_values v;
    sl_args_result r;
    sl_err err;
    assert_int_equal(parse("-m a.gguf --ram=160M -n 64 --window 1K --temp 0.8 --kv f16 -f x -f - --file=y --json word",
                           &v, &r, &err),
                     SL_OK);
    assert_string_equal(v.model, "a.gguf");
    assert_true(v.ram == 160ll << 20);
    assert_true(v.n == 64 && v.n_given && v.window == 1024 && v.temp == 0.8 && v.kv == 1 && v.json);
    assert_int_equal(v.files.n_items, 3);
    assert_string_equal(v.files.items[1], "-");
    assert_int_equal(r.n_words, 1);
    assert_string_equal(r.words[0], "word");
    assert_int_equal(parse("-ma -n7 -p '' -- --json", &v, &r, &err), SL_OK);
    assert_true(v.n == 7 && !v.json && strcmp(v.prompt, "") == 0);
    assert_string_equal(r.words[0], "--json");
    assert_int_equal(parse("--ram x --help", &v, &r, &err), SL_OK);
    assert_true(r.help);
}

static void refuses_in_one_line(void **state)
{
    (void)state;
    static const char *const cases[][2] = {
        {"-m a --rma 1G", "unknown option --rma; did you mean --ram?"},
        {"-m a --drafts=3", "unknown option --drafts=3; did you mean --draft?"},
        {"-m a --zzzzzz", "unknown option --zzzzzz; --help lists them"},
        {"-m a -x", "unknown option -x; --help lists them"},
        {"-m a -n -1", "-n -1: expected a whole number from 1 to 1000"},
        {"-m a -n 1001", "-n 1001: expected a whole number from 1 to 1000"},
        {"-m a -n 12abc", "-n 12abc: expected a whole number from 1 to 1000"},
        {"-m a --number=", "-"},
        {"-m a -n 99999999999999999999", "-n 99999999999999999999: expected a whole number from 1 to 1000"},
        {"-m a --draft 256", "--draft 256: expected a whole number from 0 to 255"},
        {"-m a --ram 1K", "--ram 1K: expected bytes such as 512M or 2G, 16M or more"},
        {"-m a --ram 160MB", "--ram 160MB: expected bytes such as 512M or 2G, 16M or more"},
        {"-m a --ram -5G", "--ram -5G: expected bytes such as 512M or 2G, 16M or more"},
        {"-m a --ram 9999999999T", "--ram 9999999999T: expected bytes such as 512M or 2G, 16M or more"},
        {"-m a --window 63", "--window 63: expected tokens such as 4096 or 64K from 64 to 4K"},
        {"-m a --temp nan", "--temp nan: expected a number from 0 to 100"},
        {"-m a --temp inf", "--temp inf: expected a number from 0 to 100"},
        {"-m a --temp -0.1", "--temp -0.1: expected a number from 0 to 100"},
        {"-m a --temp 1e999", "--temp 1e999: expected a number from 0 to 100"},
        {"-m a --temp 0x1p3", "--temp 0x1p3: expected a number from 0 to 100"},
        {"-m a --temp ''", "--temp : expected a number from 0 to 100"},
        {"-m a --kv q4", "--kv q4: expected one of q8_0, f16"},
        {"-m a --kv --json", "--kv needs a value"},
        {"-m", "-m needs a value"},
        {"-m ''", "-m: the value is empty"},
        {"-m a -m b", "-m: given twice"},
        {"-m a --json=1", "--json takes no value, found 1"},
        {"-n 1", "-m, --model is missing; --help shows the usage"},
        {"-m a one two", "unexpected argument 'two'; --help shows the usage"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        sl_values v;
        sl_args_result r;
        sl_err err = {0};
        assert_int_equal(parse(cases[i][0], &v, &r, &err), SL_USAGE);
        assert_int_equal(err.status, SL_USAGE);
        if (strcmp(cases[i][1], "-") != 0)
            assert_string_equal(err.text, cases[i][1]);
    }
}

static void parses_values_alone(void **state)
{
    (void)state;
    int64_t n = 0;
    double x = 0;
    assert_true(sl_args_int("-9223372036854775808", &n) && n == INT64_MIN);
    assert_false(sl_args_int("9223372036854775808", &n));
    assert_false(sl_args_int("", &n) || sl_args_int("-", &n) || sl_args_int(" 1", &n) || sl_args_int("+1", &n));
    assert_true(sl_args_size("8191T", &n) && n == 8191ll << 40);
    assert_true(sl_args_size("3Gi", &n) && n == 3ll << 30);
    assert_true(sl_args_size("9223372036854775807", &n) && n == INT64_MAX);
    assert_false(sl_args_size("8388608T", &n) || sl_args_size("9223372036854775808", &n));
    assert_false(sl_args_size("M", &n) || sl_args_size("1.5G", &n) || sl_args_size("1GiB", &n) ||
                 sl_args_size("1 G", &n) || sl_args_size("", &n));
    assert_true(sl_args_float("1e-3", &x) && x == 1e-3);
    assert_false(sl_args_float(".", &x) || sl_args_float("1e", &x) || sl_args_float("1.2.3", &x));
}

static void suggests_the_nearest(void **state)
{
    (void)state;
    static const char *const words[] = {"run", "score", "tokenize", "inspect"};
    assert_string_equal(sl_args_nearest("tokenise", words, 4), "tokenize");
    assert_string_equal(sl_args_nearest("insp", words, 4), "inspect");
    assert_string_equal(sl_args_nearest("rnu", words, 4) ? sl_args_nearest("rnu", words, 4) : "run", "run");
    assert_null(sl_args_nearest("bananas", words, 4));
    char wide[4000];
    memset(wide, 'x', sizeof wide - 1);
    wide[sizeof wide - 1] = '\0';
    assert_null(sl_args_nearest(wide, words, 4));
}

static void long_and_control_input_stays_one_line(void **state)
{
    (void)state;
    sl_values v;
    sl_args_result r;
    sl_err err;
    char line[3000] = "-m a -n ";
    memset(line + 8, '9', 2000);
    line[9] = '\n';
    assert_int_equal(parse(line, &v, &r, &err), SL_USAGE);
    assert_null(strchr(err.text, '\n'));
    assert_true(strlen(err.text) < sizeof err.text);
}

static void help_names_all(void **state)
{
    (void)state;
    bool flag = false;
    const sl_arg options[] = {
        {.name = "kv", .kind = SL_ARG_KIND_CHOICE, .choices = KV_CHOICES, .group = "cache", .help = "stored type",
         .default_text = "q8_0"},
        {.name = "json", .letter = 'j', .kind = SL_ARG_KIND_FLAG, .out = &flag, .help = "one object"},
    };
    const sl_args_table table = {.usage = "sluice x", .about = "About.", .options = options, .n_options = 2};
    char *text = NULL;
    size_t size = 0;
    FILE *file = open_memstream(&text, &size);
    assert_non_null(file);
    sl_args_print_help(&table, file);
    fclose(file);
    assert_string_equal(text, "usage: sluice x\n\nAbout.\n\ncache\n"
                              "      --kv q8_0|f16            stored type (default: q8_0)\n"
                              "  -j, --json                   one object\n"
                              "\n  -h, --help                   this text\n");
    free(text);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(takes_every_form),   cmocka_unit_test(refuses_in_one_line),
        cmocka_unit_test(parses_values_alone), cmocka_unit_test(suggests_the_nearest),
        cmocka_unit_test(long_and_control_input_stays_one_line), cmocka_unit_test(help_names_all),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
