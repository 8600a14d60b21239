typedef int sl_placeholder_tok;
