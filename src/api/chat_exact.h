/* Is a file's chat template the one that its family's row describes? A template is a program; its marks alone do not
 * tell what it writes around them (a model that thinks has its answers begin with "<think>", say).
 *
 * Owns: a list of published templates, by hash, and the rule for the others. */
#ifndef SL_API_CHAT_EXACT_H
#define SL_API_CHAT_EXACT_H

#include "api/chat_family.h"

/* True for a published template that was compared, conversation by conversation, with Jinja's rendering
 * (tools/make_template_golden.py), and for one that spells nothing but what the family writes. */
bool sl_chat_is_exact(const sl_chat_family *family, const char *template);

#endif
