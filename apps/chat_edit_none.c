/* A build without libedit: lines come as the terminal gives them. */
#include "chat_edit.h"

chat_edit *chat_edit_create(FILE *out, chat_event (*next)(void *arg, unsigned char *out), void *arg)
{
    (void)out;
    (void)next;
    (void)arg;
    return NULL;
}

void chat_edit_destroy(chat_edit *edit)
{
    (void)edit;
}

chat_line chat_edit_next(chat_edit *edit, const char *prompt, const char **text, size_t *size)
{
    (void)edit;
    (void)prompt;
    (void)text;
    (void)size;
    return CHAT_LINE_END;
}
