/* Who may read a context file that is made from another: whoever may read that one, and nobody else at any moment. */
#ifndef SL_FILE_ACCESS_H
#define SL_FILE_ACCESS_H

#include <stdbool.h>
#include <sys/types.h>

typedef struct file_access {
    bool is_known;
    mode_t mode, umask_before;
    uid_t owner;
    gid_t group;
} file_access;

/* Files that are made from now on let in nobody whom `like` does not. Thread rule: the main thread, while no other one
 * makes files. */
void file_access_begin(file_access *access, const char *like);
/* `made` (NULL: none was) gets the owner and group of `like`, where that is allowed, and its mode; where the group
 * cannot be had, without the group's rights. */
void file_access_end(const file_access *access, const char *made);

#endif
