#include "file_access.h"

#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

enum { ALL = 0777, GROUP = 070 };

void file_access_begin(file_access *access, const char *like)
{
    struct stat info;
    memset(access, 0, sizeof *access);
    access->is_known = stat(like, &info) == 0;
    if (!access->is_known)
        return;
    access->mode = info.st_mode & ALL;
    access->owner = info.st_uid;
    access->group = info.st_gid;
    /* Its owner alone, until the owner is the right one. */
    access->umask_before = umask(ALL & ~(mode_t)S_IRWXU);
}

void file_access_end(const file_access *access, const char *made)
{
    struct stat info;
    if (!access->is_known)
        return;
    umask(access->umask_before);
    if (!made || stat(made, &info) != 0)
        return;
    mode_t mode = access->mode;
    if ((info.st_uid != access->owner || info.st_gid != access->group) &&
        chown(made, access->owner, access->group) != 0 && info.st_gid != access->group &&
        chown(made, (uid_t)-1, access->group) != 0)
        mode &= ~(mode_t)GROUP;
    /* What cannot be widened stays its owner's alone. */
    (void)chmod(made, mode);
}
