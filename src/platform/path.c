/* What a path leads to, and where, by POSIX calls alone. Owns nothing. */
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include "platform/os.h"

enum { STAT_BLOCK_BYTES = 512 };

char *sl_os_folder_of(const char *path)
{
    const char *slash = strrchr(path, '/');
    if (!slash)
        return strdup(".");
    return slash == path ? strdup("/") : strndup(path, (size_t)(slash - path));
}

bool sl_os_is_taken(const char *path)
{
    struct stat info;
    return lstat(path, &info) == 0;
}

bool sl_os_look(const char *path, sl_os_file *out)
{
    struct stat info;
    *out = (sl_os_file){0, 0, 0};
    if (stat(path, &info) != 0)
        return false;
    *out = (sl_os_file){(uint64_t)info.st_dev, (uint64_t)info.st_ino, (uint64_t)info.st_blocks * STAT_BLOCK_BYTES};
    return true;
}

bool sl_os_is_same(const sl_os_file *a, const sl_os_file *b)
{
    return a->device == b->device && a->number == b->number;
}
