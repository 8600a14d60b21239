typedef int sl_placeholder_ngram;
