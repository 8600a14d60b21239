#include "tok/cut.h"

#include <string.h>

static bool is_letter(char c)
{
    return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z');
}

void sl_cuts_init(sl_cuts *cuts, const sl_specials *specials, const sl_spm *spm, bool adds_space)
{
    *cuts = (sl_cuts){.spm = spm, .at_words = true, .at_lines = true};
    for (size_t i = 0; i < specials->n; i++) {
        const sl_tok_text text = specials->items[i].text;
        for (size_t at = 0; at + 1 < text.size; at++) {
            if (is_letter(text.data[at]) && text.data[at + 1] == ' ')
                cuts->at_words = false;
            if (text.data[at] == '\n' && (uint8_t)text.data[at + 1] > ' ')
                cuts->at_lines = false;
        }
        if (adds_space && specials->items[i].is_hidden && is_letter(text.data[text.size - 1]))
            cuts->at_words = false;
        if (adds_space && specials->items[i].is_hidden && text.data[text.size - 1] == '\n')
            cuts->at_lines = false;
    }
}

/* Is the character that begins at data[at], all of it there, one that is surely no white space? Unicode's are spread
 * over U+0085 and U+00A0, U+1680, U+2000 to U+205F, U+3000. */
static bool is_dark(sl_tok_text text, size_t at)
{
    const uint8_t lead = (uint8_t)text.data[at];
    if (lead < 0x80)
        return lead > 0x20 && lead < 0x7f;
    const size_t n = lead < 0xc3 ? 0 : lead < 0xe0 ? 2 : lead < 0xf0 ? 3 : 4;
    if (n == 0 || lead == 0xe1 || lead == 0xe2 || n > text.size - at)
        return false;
    return memcmp(text.data + at, "\xe3\x80\x80", n < 3 ? n : 3) != 0;
}

/* The same of the character that ends in front of `at`. */
static bool is_dark_before(sl_tok_text text, size_t at)
{
    size_t begin = at - 1;
    while (begin > 0 && at - begin < 4 && ((uint8_t)text.data[begin] & 0xc0) == 0x80)
        begin--;
    return is_dark(text, begin);
}

/* at: 2 .. size - 1 */
static bool is_place(const sl_cuts *cuts, sl_tok_text text, size_t at)
{
    const char *here = text.data + at;
    if (*here == ' ')
        return cuts->at_words && at + 1 < text.size && is_letter(here[-1]) && is_letter(here[1]) &&
               !(cuts->spm && sl_spm_may_join(cuts->spm, here - 1, here));
    return here[-1] == '\n' && cuts->at_lines && *here != '/' && is_dark(text, at) && is_dark_before(text, at - 1) &&
           !(cuts->spm && sl_spm_may_join(cuts->spm, here - 1, here));
}

size_t sl_cut_last(const sl_cuts *cuts, sl_tok_text text, size_t from)
{
    for (size_t at = text.size; at > from && at > 2; at--)
        if (is_place(cuts, text, at - 1))
            return at - 1;
    return 0;
}
