#include "texts.h"

#include <dirent.h>
#include <errno.h>
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
        bool is_known = lstat(path, &info) == 0;
        bool is_output = is_known && texts->has_left_out && info.st_dev == texts->left_out.st_dev &&
                         info.st_ino == texts->left_out.st_ino;
        if (is_known && S_ISREG(info.st_mode) && !is_output) {
            status = add(texts, path, err);
            continue;
        }
        if (is_known && S_ISDIR(info.st_mode))
            status = walk(texts, path, depth + 1, err);
        free(path);
    }
    cli_texts_free(&names);
    return status;
}

static sl_status add_source(cli_texts *texts, const char *source, sl_err *err)
{
    struct stat info;
    if (strcmp(source, "-") != 0 && stat(source, &info) == 0 && S_ISDIR(info.st_mode)) {
        size_t before = texts->n;
        sl_status status = walk(texts, source, 0, err);
        if (status == SL_OK && texts->n == before)
            return sl_text_error(err, SL_FAILED, "%s: no files in that folder", source);
        return status;
    }
    for (size_t i = 0; strcmp(source, "-") == 0 && i < texts->n; i++)
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
                         const char *output, cli_texts *out, sl_err *err)
{
    memset(out, 0, sizeof *out);
    out->has_left_out = stat(output, &out->left_out) == 0;
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
