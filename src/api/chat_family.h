/* The chat templates that are known here: what each writes around messages, and how a file's template is recognised.
 *
 * Owns: a table. Refuses: nothing; what no row describes is for others to refuse.
 * A conversation is  start SYSTEM user USER ask ANSWER end user USER ask ANSWER end ...
 * Sources: the templates of the models named in chat_family.c; docs/decisions.md says why a table and no evaluation. */
#ifndef SL_API_CHAT_FAMILY_H
#define SL_API_CHAT_FAMILY_H

#include <stdbool.h>
#include <stddef.h>

/* In these texts \x01 stands for the vocabulary's BOS, \x02 for its EOS. */
typedef struct sl_chat_family {
    const char *name;
    const char *marks[4]; /* that a template of this family holds, as it spells them; up to NULL */
    const char *lacks[2]; /* and that it does not hold */
    const char *start;    /* behind BOS */
    const char *system[2]; /* around a system message of its own; NULL: it has none such */
    const char *joined[2]; /* else around one at the beginning of the first user message; NULL: none is possible */
    const char *fixed;     /* in front of any system message, and a message where none is given; NULL: nothing */
    const char *tail;      /* behind any system message, part of its text; NULL: nothing */
    const char *forbids[2]; /* what a system message must not hold: the template takes it for something else */
    const char *user;      /* in front of a user message; a space at its end belongs to the message */
    const char *ask;       /* between a user message and its answer */
    const char *end;       /* behind an answer */
    const char *kin;       /* of the same marks, takes a system message where this one does not; or NULL */
    const char *refusal;   /* why the file's template is refused although it is known; NULL: it is not */
    bool trims;            /* messages lose white space at both ends */
    bool trims_system;     /* the system message does */
    bool trims_system_end; /* at its end alone; one of nothing else is none */
    bool strips;           /* marks swallow the white space behind them, where the vocabulary is SentencePiece's */
} sl_chat_family;

/* How the system messages begin that SmolLM3's template spells out: with thinking first, then without. */
#define SL_CHAT_SMOLLM3_SYSTEM "You are a helpful AI assistant named SmolLM"

/* The family of a template's text; NULL: none. */
const sl_chat_family *sl_chat_family_of(const char *template);
const sl_chat_family *sl_chat_family_find(const char *name); /* NULL: none of that name */
/* "chatml, llama2, ...": every name, at most once. Returns out. */
const char *sl_chat_family_names(char *out, size_t size);

/* The system message that a template spells out itself, as text; *size 0: none. Borrowed from the template; backslash
 * n in it stands for a newline. *is_dated: it holds what differs from day to day. */
const char *sl_chat_default_system(const sl_chat_family *family, const char *template, size_t *size, bool *is_dated);

/* May a conversation in this template begin with a system message? template: NULL, or the file's own, which may leave
 * out what its family knows. */
bool sl_chat_takes_system(const sl_chat_family *family, const char *template);

#endif
