/* Text out of a model file, made fit for a one-line message: at most 79 bytes, anything but printable ASCII as '?'. */
#ifndef SL_QUOTE_H
#define SL_QUOTE_H

#include "tok/tok.h"

typedef struct sl_quote {
    char text[80];
} sl_quote;

static inline sl_quote sl_quote_of(sl_tok_text from)
{
    sl_quote quote;
    size_t n = from.size < sizeof quote.text ? from.size : sizeof quote.text - 1;
    for (size_t i = 0; i < n; i++)
        quote.text[i] = from.data[i] >= 0x20 && from.data[i] <= 0x7e ? from.data[i] : '?';
    quote.text[n] = '\0';
    return quote;
}

#endif
