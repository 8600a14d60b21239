#include "common/args.h"

#include <assert.h>
#include <errno.h>
#include <inttypes.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

/* "--name" or "-x" as the user wrote it, for the error text. */
typedef struct sl_arg_seen {
    char text[80];
} sl_arg_seen;

bool sl_args_int(const char *text, int64_t *out)
{
    const char *digits = text[0] == '-' ? text + 1 : text;
    if (digits[0] == '\0' || strspn(digits, "0123456789") != strlen(digits))
        return false;
    errno = 0;
    long long value = strtoll(text, NULL, 10);
    if (errno != 0)
        return false;
    *out = value;
    return true;
}

bool sl_args_size(const char *text, int64_t *out)
{
    static const char letters[] = "KMGT";
    size_t n_digits = strspn(text, "0123456789");
    if (n_digits == 0 || n_digits > 19)
        return false;
    errno = 0;
    long long value = strtoll(text, NULL, 10);
    if (errno != 0)
        return false;
    const char *suffix = text + n_digits;
    int shift = 0;
    if (suffix[0] != '\0') {
        const char *letter = strchr(letters, suffix[0]);
        if (!letter || (suffix[1] != '\0' && strcmp(suffix + 1, "i") != 0))
            return false;
        shift = 10 * (int)(letter - letters + 1);
    }
    if (value > INT64_MAX >> shift)
        return false;
    *out = (int64_t)value << shift;
    return true;
}

bool sl_args_float(const char *text, double *out)
{
    /* strtod also takes white space, "nan", "inf" and hexadecimal: none is meant */
    if (text[0] == '\0' || strspn(text, "0123456789+-.eE") != strlen(text))
        return false;
    char *end = NULL;
    double value = strtod(text, &end);
    if (*end != '\0' || end == text || !isfinite(value))
        return false;
    *out = value;
    return true;
}

/* Levenshtein distance; words longer than the table count as far. */
static size_t edit_distance(const char *a, const char *b)
{
    enum { LONGEST = 48 };
    size_t n_a = strlen(a);
    size_t n_b = strlen(b);
    size_t row[LONGEST + 1];
    if (n_a > LONGEST || n_b > LONGEST)
        return SIZE_MAX;
    for (size_t j = 0; j <= n_b; j++)
        row[j] = j;
    for (size_t i = 1; i <= n_a; i++) {
        size_t diagonal = row[0];
        row[0] = i;
        for (size_t j = 1; j <= n_b; j++) {
            size_t best = diagonal + (a[i - 1] != b[j - 1]);
            best = row[j] + 1 < best ? row[j] + 1 : best;
            best = row[j - 1] + 1 < best ? row[j - 1] + 1 : best;
            diagonal = row[j];
            row[j] = best;
        }
    }
    return row[n_b];
}

const char *sl_args_nearest(const char *word, const char *const *candidates, size_t n_candidates)
{
    const char *nearest = NULL;
    size_t best = strlen(word) / 3 + 2; /* farther than this is another word */
    for (size_t i = 0; i < n_candidates; i++) {
        bool is_start = strlen(word) >= 3 && strncmp(candidates[i], word, strlen(word)) == 0;
        size_t distance = is_start ? 1 : edit_distance(word, candidates[i]);
        if (distance < best && distance < strlen(candidates[i])) {
            best = distance;
            nearest = candidates[i];
        }
    }
    return nearest;
}

static const sl_arg *option_of_name(const sl_args_table *table, const char *name, size_t n_bytes)
{
    for (size_t i = 0; i < table->n_options; i++) {
        const char *known = table->options[i].name;
        if (strlen(known) == n_bytes && memcmp(known, name, n_bytes) == 0)
            return &table->options[i];
    }
    return NULL;
}

static const sl_arg *option_of_letter(const sl_args_table *table, char letter)
{
    for (size_t i = 0; i < table->n_options; i++)
        if (letter != 0 && table->options[i].letter == letter)
            return &table->options[i];
    return NULL;
}

static sl_status unknown_option(const sl_args_table *table, const char *word, sl_err *err)
{
    const char *names[SL_ARGS_OPTIONS_MAX + 1] = {"help"};
    for (size_t i = 0; i < table->n_options; i++)
        names[i + 1] = table->options[i].name;
    char name[64];
    const char *start = word + strspn(word, "-");
    snprintf(name, sizeof name, "%.*s", (int)strcspn(start, "="), start);
    const char *nearest = word[1] == '-' ? sl_args_nearest(name, names, table->n_options + 1) : NULL;
    if (nearest)
        return sl_text_error(err, SL_USAGE, "unknown option %.60s; did you mean --%s?", word, nearest);
    return sl_text_error(err, SL_USAGE, "unknown option %.60s; --help lists them", word);
}

/* A bound as a person would type it. */
static const char *bound_text(sl_arg_kind kind, int64_t bound, char out[SL_TEXT_NUMBER_BYTES])
{
    static const char *const suffixes[] = {"", "K", "M", "G", "T"};
    size_t unit = 0;
    if (kind == SL_ARG_KIND_SIZE || kind == SL_ARG_KIND_TOKENS)
        while (unit < 4 && bound != 0 && bound % 1024 == 0) {
            bound /= 1024;
            unit++;
        }
    snprintf(out, SL_TEXT_NUMBER_BYTES, "%" PRId64 "%s", bound, suffixes[unit]);
    return out;
}

static int64_t upper_bound(const sl_arg *option)
{
    return option->min == 0 && option->max == 0 ? INT64_MAX : option->max;
}

static sl_status refuse_integer(const sl_arg *option, const char *seen, const char *value, sl_err *err)
{
    const char *what = option->kind == SL_ARG_KIND_INT    ? "a whole number"
                       : option->kind == SL_ARG_KIND_SIZE ? "bytes such as 512M or 2G"
                                                          : "tokens such as 4096 or 64K";
    char min[SL_TEXT_NUMBER_BYTES];
    char max[SL_TEXT_NUMBER_BYTES];
    bound_text(option->kind, option->min, min);
    if (upper_bound(option) == INT64_MAX)
        return sl_text_error(err, SL_USAGE, "%s %.100s: expected %s, %s or more", seen, value, what, min);
    return sl_text_error(err, SL_USAGE, "%s %.100s: expected %s from %s to %s", seen, value, what, min,
                         bound_text(option->kind, option->max, max));
}

static sl_status store_integer(const sl_arg *option, const char *seen, const char *value, sl_err *err)
{
    int64_t number = 0;
    bool is_number =
        option->kind == SL_ARG_KIND_INT ? sl_args_int(value, &number) : sl_args_size(value, &number);
    if (!is_number || number < option->min || number > upper_bound(option))
        return refuse_integer(option, seen, value, err);
    *(int64_t *)option->out = number;
    return SL_OK;
}

static sl_status store_choice(const sl_arg *option, const char *seen, const char *value, sl_err *err)
{
    char all[200] = "";
    for (int i = 0; option->choices[i]; i++) {
        if (strcmp(option->choices[i], value) == 0) {
            *(int *)option->out = i;
            return SL_OK;
        }
        size_t used = strlen(all);
        snprintf(all + used, sizeof all - used, "%s%s", i ? ", " : "", option->choices[i]);
    }
    return sl_text_error(err, SL_USAGE, "%s %.100s: expected one of %s", seen, value, all);
}

static sl_status store_string(const sl_arg *option, const char *seen, const char *value, sl_err *err)
{
    if (value[0] == '\0' && !option->allow_empty)
        return sl_text_error(err, SL_USAGE, "%s: the value is empty", seen);
    if (option->kind == SL_ARG_KIND_STRING) {
        *(const char **)option->out = value;
        return SL_OK;
    }
    sl_arg_list *list = option->out;
    if (list->n_items == SL_ARGS_VALUES_MAX)
        return sl_text_error(err, SL_USAGE, "%s: given more than %d times", seen, SL_ARGS_VALUES_MAX);
    list->items[list->n_items++] = value;
    return SL_OK;
}

static sl_status store_float(const sl_arg *option, const char *seen, const char *value, sl_err *err)
{
    double number = 0;
    if (!sl_args_float(value, &number) || number < option->low || number > option->high)
        return sl_text_error(err, SL_USAGE, "%s %.100s: expected a number from %g to %g", seen, value, option->low,
                             option->high);
    *(double *)option->out = number;
    return SL_OK;
}

static sl_status store_value(const sl_arg *option, const char *seen, const char *value, sl_err *err)
{
    switch (option->kind) {
    case SL_ARG_KIND_INT:
    case SL_ARG_KIND_SIZE:
    case SL_ARG_KIND_TOKENS:
        return store_integer(option, seen, value, err);
    case SL_ARG_KIND_FLOAT:
        return store_float(option, seen, value, err);
    case SL_ARG_KIND_CHOICE:
        return store_choice(option, seen, value, err);
    case SL_ARG_KIND_STRING:
    case SL_ARG_KIND_LIST:
        return store_string(option, seen, value, err);
    case SL_ARG_KIND_FLAG:
        break;
    }
    *(bool *)option->out = true;
    return SL_OK;
}

/* A walk over argv. */
typedef struct sl_args_walk {
    const sl_args_table *table;
    int argc;
    char *const *argv;
    int at; /* the next argument */
    bool seen[SL_ARGS_OPTIONS_MAX];
    sl_args_result *result;
} sl_args_walk;

/* The value in the next argument. One that is itself a known option means that the value was forgotten. */
static const char *take_value(sl_args_walk *walk)
{
    if (walk->at >= walk->argc)
        return NULL;
    const char *value = walk->argv[walk->at];
    if (strncmp(value, "--", 2) == 0) {
        const char *name = value + 2;
        if (name[0] == '\0' || option_of_name(walk->table, name, strcspn(name, "=")))
            return NULL;
    }
    walk->at++;
    return value;
}

static sl_status take_option(sl_args_walk *walk, const sl_arg *option, const char *seen, const char *attached,
                             sl_err *err)
{
    size_t idx = (size_t)(option - walk->table->options);
    if (walk->seen[idx] && option->kind != SL_ARG_KIND_LIST && option->kind != SL_ARG_KIND_FLAG)
        return sl_text_error(err, SL_USAGE, "%s: given twice", seen);
    walk->seen[idx] = true;
    if (option->given)
        *option->given = true;
    if (option->kind == SL_ARG_KIND_FLAG) {
        if (attached)
            return sl_text_error(err, SL_USAGE, "%s takes no value, found %.100s", seen, attached);
        return store_value(option, seen, NULL, err);
    }
    const char *value = attached ? attached : take_value(walk);
    if (!value)
        return sl_text_error(err, SL_USAGE, "%s needs a value", seen);
    return store_value(option, seen, value, err);
}

static sl_status take_long(sl_args_walk *walk, const char *word, sl_err *err)
{
    const char *name = word + 2;
    size_t n_bytes = strcspn(name, "=");
    const sl_arg *option = option_of_name(walk->table, name, n_bytes);
    if (!option)
        return unknown_option(walk->table, word, err);
    sl_arg_seen seen;
    snprintf(seen.text, sizeof seen.text, "--%s", option->name);
    return take_option(walk, option, seen.text, name[n_bytes] ? name + n_bytes + 1 : NULL, err);
}

static sl_status take_short(sl_args_walk *walk, const char *word, sl_err *err)
{
    const sl_arg *option = option_of_letter(walk->table, word[1]);
    if (!option)
        return unknown_option(walk->table, word, err);
    sl_arg_seen seen;
    snprintf(seen.text, sizeof seen.text, "-%c", option->letter);
    return take_option(walk, option, seen.text, word[2] ? word + 2 : NULL, err);
}

static sl_status take_word(sl_args_walk *walk, const char *word, sl_err *err)
{
    sl_args_result *result = walk->result;
    if (result->n_words == walk->table->max_words)
        return sl_text_error(err, SL_USAGE, "unexpected argument '%.100s'; --help shows the usage", word);
    result->words[result->n_words++] = word;
    return SL_OK;
}

static sl_status check_complete(const sl_args_walk *walk, sl_err *err)
{
    const sl_args_table *table = walk->table;
    for (size_t i = 0; i < table->n_options; i++) {
        const sl_arg *option = &table->options[i];
        if (!option->required || walk->seen[i])
            continue;
        char letter[8] = "";
        if (option->letter)
            snprintf(letter, sizeof letter, "-%c, ", option->letter);
        return sl_text_error(err, SL_USAGE, "%s--%s is missing; --help shows the usage", letter, option->name);
    }
    if (walk->result->n_words < table->min_words)
        return sl_text_error(err, SL_USAGE, "%s is missing; --help shows the usage", table->words_name);
    return SL_OK;
}

static bool wants_help(int argc, char *const *argv)
{
    for (int i = 0; i < argc && strcmp(argv[i], "--") != 0; i++)
        if (strcmp(argv[i], "--help") == 0 || strcmp(argv[i], "-h") == 0)
            return true;
    return false;
}

sl_status sl_args_parse(const sl_args_table *table, int argc, char *const *argv, sl_args_result *out, sl_err *err)
{
    assert(table->n_options <= SL_ARGS_OPTIONS_MAX && table->max_words <= SL_ARGS_VALUES_MAX);
    *out = (sl_args_result){.help = wants_help(argc, argv)};
    if (out->help)
        return SL_OK;
    sl_args_walk walk = {.table = table, .argc = argc, .argv = argv, .result = out};
    bool only_words = false;
    while (walk.at < argc) {
        const char *word = argv[walk.at++];
        sl_status status = SL_OK;
        if (!only_words && strcmp(word, "--") == 0)
            only_words = true;
        else if (only_words || word[0] != '-' || word[1] == '\0')
            status = take_word(&walk, word, err);
        else
            status = word[1] == '-' ? take_long(&walk, word, err) : take_short(&walk, word, err);
        if (status != SL_OK)
            return status;
    }
    return check_complete(&walk, err);
}

static void help_metavar(const sl_arg *option, char *out, size_t out_bytes)
{
    static const char *const names[] = {"", "N", "SIZE", "TOKENS", "X", "TEXT", "TEXT", ""};
    if (option->metavar) {
        snprintf(out, out_bytes, "%s", option->metavar);
        return;
    }
    snprintf(out, out_bytes, "%s", names[option->kind]);
    for (int i = 0; option->kind == SL_ARG_KIND_CHOICE && option->choices[i]; i++) {
        size_t used = strlen(out);
        snprintf(out + used, out_bytes - used, "%s%s", i ? "|" : "", option->choices[i]);
    }
}

void sl_args_print_help(const sl_args_table *table, FILE *file)
{
    fprintf(file, "usage: %s\n", table->usage);
    if (table->about)
        fprintf(file, "\n%s\n", table->about);
    for (size_t i = 0; i < table->n_options; i++) {
        const sl_arg *option = &table->options[i];
        char metavar[48];
        char head[96];
        char letter[8] = "    ";
        if (option->group || i == 0)
            fprintf(file, "\n%s\n", option->group ? option->group : "options");
        if (option->letter)
            snprintf(letter, sizeof letter, "-%c, ", option->letter);
        help_metavar(option, metavar, sizeof metavar);
        snprintf(head, sizeof head, "%s--%s %s", letter, option->name, metavar);
        fprintf(file, "  %-28s %s", head, option->help);
        if (option->default_text)
            fprintf(file, " (default: %s)", option->default_text);
        fputc('\n', file);
    }
    fputs("\n  -h, --help                   this text\n", file);
}
