/* Prompts for tests of speculation: prose, code, lists, repetition, next to nothing, other scripts. The same ones on
 * every machine. */
#ifndef PROMPTS_H
#define PROMPTS_H

#include <stddef.h>

enum { PROMPTS = 200, PROMPT_BYTES = 1024 };

/* Prompt i of PROMPTS as terminated UTF-8, 1 byte or more; returns its size. Kinds take turns. */
size_t prompt_make(size_t i, char out[PROMPT_BYTES]);

#endif
