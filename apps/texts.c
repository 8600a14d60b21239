#include "texts.h"

#include <dirent.h>
#include <errno.h>
#include <glob.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static sl_status no_memory(sl_err *err)
{
    return sl_text_error(err, SL_FAILED, "out of memory: list of texts");
}

/* Takes the path. */
static sl_status add(cli_texts *texts, char *path, sl_err *err)
{
    if (texts->n == texts->room) {
        size_t room = texts->room * 2 + 16;
        char **paths = realloc(texts->paths, room * sizeof *paths);
        if (!paths) {
            free(path);
            return no_memory(err);
        }
        texts->paths = paths;
        texts->room = room;
    }
    texts->paths[texts->n++] = path;
    return SL_OK;
}

static int by_name(const void *a, const void *b)
{
    return strcmp(*(char *const *)a, *(char *const *)b);
}

/* The names in a folder, sorted; *out owned by caller. */
static sl_status list_names(const char *folder, cli_texts *out, sl_err *err)
{
    DIR *dir = opendir(folder);
    if (!dir)
        return sl_text_error(err, SL_FAILED, "%s: cannot be read: %s", folder, strerror(errno));
    sl_status status = SL_OK;
    errno = 0;
    for (struct dirent *entry; status == SL_OK && (entry = readdir(dir)) != NULL; errno = 0) {
        if (entry->d_name[0] == '.')
            continue;
        char *name = strdup(entry->d_name);
        status = name ? add(out, name, err) : no_memory(err);
    }
    if (status == SL_OK && errno != 0)
        status = sl_text_error(err, SL_FAILED, "%s: cannot be read: %s", folder, strerror(errno));
    closedir(dir);
    if (out->n > 0)
        qsort(out->paths, out->n, sizeof *out->paths, by_name);
    return status;
}

static char *join(const char *folder, const char *name)
{
    size_t n = strlen(folder);
    bool has_slash = n > 0 && folder[n - 1] == '/';
    char *path = malloc(n + strlen(name) + 2);
    if (path) {
        memcpy(path, folder, n);
        if (!has_slash)
            path[n++] = '/';
        strcpy(path + n, name);
    }
    return path;
}

static bool is_left_out(const cli_texts *texts, const struct stat *info)
{
    bool is_output = false;
    for (size_t i = 0; i < texts->n_left_out; i++)
        is_output = is_output ||
                    (info->st_dev == texts->left_out[i].st_dev && info->st_ino == texts->left_out[i].st_ino);
    return is_output;
}

static sl_status walk(cli_texts *texts, const char *folder, int depth, sl_err *err)
{
    enum { DEEPEST = 64 };
    cli_texts names = {0};
    if (depth > DEEPEST)
        return sl_text_error(err, SL_FAILED, "%s: folders in folders, more than %d deep", folder, (int)DEEPEST);
    sl_status status = list_names(folder, &names, err);
    for (size_t i = 0; status == SL_OK && i < names.n; i++) {
        struct stat info;
        char *path = join(folder, names.paths[i]);
        if (!path) {
            status = no_memory(err);
            break;
        }
        bool is_known = lstat(path, &info) == 0, is_folder = is_known && S_ISDIR(info.st_mode);
        /* Links to files are followed, links to folders are not: they could lead in circles. */
        bool is_file = is_known && stat(path, &info) == 0 && S_ISREG(info.st_mode);
        if (is_file && !is_left_out(texts, &info)) {
            status = add(texts, path, err);
            continue;
        }
        if (is_folder)
            status = walk(texts, path, depth + 1, err);
        else if (!is_file)
            fprintf(stderr, "sluice: warning: %s: not a file, left out\n", path);
        free(path);
    }
    cli_texts_free(&names);
    return status;
}

static sl_status add_folder(cli_texts *texts, const char *folder, sl_err *err)
{
    size_t before = texts->n;
    sl_status status = walk(texts, folder, 0, err);
    if (status == SL_OK && texts->n == before)
        return sl_text_error(err, SL_FAILED, "%s: no files in that folder", folder);
    return status;
}

/* What the shell did not: a pattern in quotes, or more names than a command line holds. */
static sl_status add_pattern(cli_texts *texts, const char *pattern, sl_err *err)
{
    glob_t found;
    size_t before = texts->n;
    int failed = glob(pattern, GLOB_ERR | GLOB_NOSORT, NULL, &found);
    if (failed == GLOB_NOMATCH)
        return sl_text_error(err, SL_FAILED, "%s: there is no such file, and nothing matches the pattern", pattern);
    if (failed != 0)
        return sl_text_error(err, SL_FAILED, "%s: cannot be matched: %s", pattern,
                             failed == GLOB_NOSPACE ? "out of memory" : strerror(errno));
    qsort(found.gl_pathv, found.gl_pathc, sizeof *found.gl_pathv, by_name);
    sl_status status = SL_OK;
    for (size_t i = 0; status == SL_OK && i < found.gl_pathc; i++) {
        struct stat info;
        bool is_known = stat(found.gl_pathv[i], &info) == 0;
        if (is_known && S_ISDIR(info.st_mode)) {
            status = walk(texts, found.gl_pathv[i], 0, err);
        } else if (!is_known || !is_left_out(texts, &info)) {
            /* A file of that name, not standard input. */
            char *copy = strcmp(found.gl_pathv[i], "-") == 0 ? strdup("./-") : strdup(found.gl_pathv[i]);
            status = copy ? add(texts, copy, err) : no_memory(err);
        }
    }
    globfree(&found);
    if (status == SL_OK && texts->n == before)
        return sl_text_error(err, SL_FAILED, "%s: no files match that pattern", pattern);
    return status;
}

static sl_status add_source(cli_texts *texts, const char *source, sl_err *err)
{
    struct stat info;
    bool is_input = strcmp(source, "-") == 0;
    bool is_known = !is_input && lstat(source, &info) == 0;
    if (is_known && stat(source, &info) == 0 && S_ISDIR(info.st_mode))
        return add_folder(texts, source, err);
    if (!is_input && !is_known && strpbrk(source, "*?["))
        return add_pattern(texts, source, err);
    for (size_t i = 0; is_input && i < texts->n; i++)
        if (strcmp(texts->paths[i], "-") == 0)
            return sl_text_error(err, SL_USAGE, "standard input (-) is given twice");
    char *copy = strdup(source);
    return copy ? add(texts, copy, err) : no_memory(err);
}

/* Where on the command line a value, or the end of an argument that it is, stands. */
static int place_of(int argc, char *const *argv, const char *value)
{
    for (int i = 0; i < argc; i++)
        for (const char *at = argv[i];; at++) {
            if (at == value)
                return i;
            if (*at == '\0')
                break;
        }
    return argc;
}

sl_status cli_texts_find(int argc, char *const *argv, const sl_arg_list *values, const sl_args_result *words,
                         const char *const outputs[2], cli_texts *out, sl_err *err)
{
    memset(out, 0, sizeof *out);
    for (size_t i = 0; i < 2; i++)
        out->n_left_out += outputs[i] && stat(outputs[i], &out->left_out[out->n_left_out]) == 0;
    sl_status status = SL_OK;
    for (size_t v = 0, w = 0; status == SL_OK && v + w < values->n_items + words->n_words;) {
        bool is_value = w == words->n_words ||
                        (v < values->n_items &&
                         place_of(argc, argv, values->items[v]) < place_of(argc, argv, words->words[w]));
        status = add_source(out, is_value ? values->items[v++] : words->words[w++], err);
    }
    return status;
}

void cli_texts_free(cli_texts *texts)
{
    for (size_t i = 0; i < texts->n; i++)
        free(texts->paths[i]);
    free(texts->paths);
    texts->paths = NULL;
    texts->n = texts->room = 0;
}
